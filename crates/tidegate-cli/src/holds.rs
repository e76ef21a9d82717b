//! The open holds of a key, as `inspect` shows them.

use serde_json::{Value, json};
use tidegate::admin::{FoundHold, Inspector, KeyHolds, Name};
use tidegate::reference::holds::AtEnd;

use crate::failure::Failure;
use crate::gate_names::GateNames;
use crate::output::{Text, Tone, table};
use crate::units::human;

/// The states of a key that have holds, with their holds.
pub(crate) struct Holds(Vec<(Name, KeyHolds)>);

impl Holds {
    /// Reads the holds of these states, at most `limit` of them.
    pub(crate) async fn read(inspector: &Inspector, names: &[Name], limit: usize) -> Result<Self, Failure> {
        let mut all = Vec::new();
        for name in names.iter().take(limit) {
            let mut holds = inspector.holds(name).await?;
            // They may have ended since the scan.
            if holds.count > 0 {
                holds.first.truncate(limit);
                all.push((name.clone(), holds));
            }
        }
        Ok(Self(all))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a table of the holds, one per row.
    pub(crate) fn lines(&self, names: &GateNames) -> Vec<Vec<Text>> {
        if self.is_empty() {
            return Vec::new();
        }
        let row = |name: &Name, hold: &FoundHold| {
            vec![
                names.shown(&name.gate).into(),
                name.shape.to_string().into(),
                hold.id.as_str().into(),
                hold.units.to_string().into(),
                human(hold.ends_in).into(),
                words(hold.at_end).0.into(),
            ]
        };
        let rows =
            self.0.iter().flat_map(|(name, holds)| holds.first.iter().map(move |hold| row(name, hold)));
        let mut lines = vec![vec![Text::default()]];
        lines.extend(table(&["gate", "stored as", "hold", "units", "ends in", "then"], rows.collect()));
        let more: u64 = self.0.iter().map(|(_, holds)| holds.count - holds.first.len() as u64).sum();
        if more > 0 {
            lines.push(vec![Text(
                Tone::Warn,
                format!("and {more} more holds: increase --limit (at most 100 per state)"),
            )]);
        }
        lines
    }

    pub(crate) fn json(&self) -> Value {
        let of_state = |(name, holds): &(Name, KeyHolds)| {
            let hold = |hold: &FoundHold| {
                json!({
                    "id": hold.id,
                    "units": hold.units,
                    "ends_in_us": hold.ends_in.as_micros() as u64,
                    "at_end": words(hold.at_end).1,
                })
            };
            json!({
                "gate": name.gate,
                "stored_as": name.shape.to_string(),
                "redis_key": name.redis_key,
                "count": holds.count,
                "first": holds.first.iter().map(hold).collect::<Vec<_>>(),
            })
        };
        self.0.iter().map(of_state).collect()
    }
}

/// Returns words and a label for what happens at the end of a hold.
fn words(at_end: AtEnd) -> (&'static str, &'static str) {
    match at_end {
        AtEnd::Keep => ("stays charged", "keep"),
        AtEnd::Refund => ("is refunded", "back"),
        AtEnd::Forget => ("can no longer be committed late", "late"),
    }
}
