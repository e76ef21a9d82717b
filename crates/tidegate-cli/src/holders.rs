//! The processes that hold units of an in-flight limit.

use serde_json::{Value, json};
use tidegate::admin::{Found, Holders, Inspector};

use crate::failure::Failure;
use crate::gate_names::GateNames;
use crate::output::{Text, Tone, table};
use crate::units::{human, us};

/// The holders of each state, or the error of a state whose holders are not readable. `None` for a state of
/// another algorithm.
pub(crate) type HoldersOfStates = Vec<Option<Result<Holders, String>>>;

/// Reads the holders of the states that are shown.
pub(crate) async fn read(inspector: &Inspector, shown: &[Found]) -> Result<HoldersOfStates, Failure> {
    let mut all = Vec::with_capacity(shown.len());
    for found in shown {
        let is_in_flight = found.name.shape.quota(1).is_ok_and(|quota| quota.is_in_flight());
        if !is_in_flight || found.usage.is_err() {
            all.push(None);
            continue;
        }
        all.push(Some(match inspector.holders(&found.name).await {
            Err(error) if error.is_corrupt_state() => Err(error.to_string()),
            result => Ok(result?),
        }));
    }
    Ok(all)
}

/// Returns a table for each state with holders, below a line with the gate.
pub(crate) fn lines(
    shown: &[Found],
    holders: &HoldersOfStates,
    limit: usize,
    names: &GateNames,
) -> Vec<Vec<Text>> {
    let mut lines = Vec::new();
    for (found, holders) in shown.iter().zip(holders) {
        let gate = names.shown(&found.name.gate);
        let holders = match holders {
            None => continue,
            Some(Ok(holders)) => holders,
            Some(Err(error)) => {
                lines.push(vec![Text(Tone::Bad, format!("holders of {gate} not readable: {error}"))]);
                continue;
            }
        };
        let rows = holders.holders.iter().take(limit).map(|holder| {
            let left = match holder.lease_ends_in {
                Some(left) => human(left).into(),
                None => Text(Tone::Warn, "ended, does not count".to_owned()),
            };
            vec![holder.name.as_str().into(), holder.units.to_string().into(), left]
        });
        if !holders.holders.is_empty() {
            lines.push(Vec::new());
            lines.extend(table(&[&format!("holder at {gate}"), "units", "lease ends in"], rows.collect()));
        }
        let hidden = holders.more + holders.holders.len().saturating_sub(limit) as u64;
        if hidden > 0 {
            lines.push(vec![Text(Tone::Warn, format!("and {hidden} more holders: increase --limit"))]);
        }
    }
    lines
}

/// Adds the holders to the JSON object of a state.
pub(crate) fn add_json(state: &mut Value, holders: Option<&Result<Holders, String>>) {
    let Some(Ok(holders)) = holders else { return };
    let each = holders.holders.iter().map(|holder| {
        json!({
            "name": holder.name,
            "units": holder.units,
            "lease_ends_in_us": holder.lease_ends_in.map(us),
        })
    });
    state["holders"] = each.collect();
    state["more_holders"] = holders.more.into();
}
