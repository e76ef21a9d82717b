//! `gates`: the gates of the rules, and those that only Redis knows.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Value, json};
use tidegate::Limiter;
use tidegate::admin::{Found, Inspector};
use tidegate_rules::{RuleGate, Rules};

use crate::failure::Failure;
use crate::output::{Output, Text, Tone, table, warn};
use crate::quota::InRules;
use crate::rules::limit_text;

/// The maximum number of combinations of gate and shape that are read from Redis.
const MAX_STORED: usize = 10_000;

/// A gate, with the place of its rule.
struct GateRow {
    name: String,
    readable: String,
    quota: String,
    origin: Option<(String, usize)>,
}

/// Lists the gates. Returns whether there are any. Of Redis, each gate is listed with each form of its keys' states.
pub(crate) async fn list(rules: &InRules, limiter: &Limiter, out: Output) -> Result<bool, Failure> {
    let names = rules.names(out)?;
    let mut gates: Vec<GateRow> =
        names.rules().into_iter().flat_map(Rules::gates).map(GateRow::of_rule).collect();
    let known: HashSet<String> = gates.iter().map(|gate| gate.name.clone()).collect();
    match stored(&Inspector::new(limiter)?, &known).await {
        Ok(found) => gates.extend(found.iter().map(GateRow::of_state)),
        Err(error) if gates.is_empty() => return Err(error),
        Err(error) => warn(out.json, &format!("gates that no rule has are not listed: {error}")),
    }
    let rows = gates.iter().map(GateRow::cells).collect();
    let lines = match gates.is_empty() {
        true => vec![vec!["no gates: add --rules PATH, or check that --namespace is the limiter's".into()]],
        false => table(&["gate", "quota", "defined at", "name in redis"], rows),
    };
    out.print(&json!({ "gates": gates.iter().map(GateRow::json).collect::<Vec<_>>() }), &lines)?;
    Ok(!gates.is_empty())
}

/// Returns a state of each gate that is not `known`, and of each form of its states.
async fn stored(inspector: &Inspector, known: &HashSet<String>) -> Result<Vec<Found>, Failure> {
    let (mut samples, mut scan) = (BTreeMap::new(), inspector.scan(None));
    while let Some(page) = scan.next().await? {
        for name in page.names.into_iter().filter(|name| !known.contains(&name.gate)) {
            if samples.len() < MAX_STORED {
                samples.entry((name.gate.clone(), name.shape)).or_insert(name);
            }
        }
    }
    Ok(inspector.read(&samples.into_values().collect::<Vec<_>>()).await?)
}

impl GateRow {
    fn of_rule(gate: RuleGate<'_>) -> Self {
        let (rule, (file, line)) = (gate.rule(), gate.rule().origin());
        let quota = match gate.quota() {
            Some(quota) if gate.is_candidate() => format!("{quota}, candidate (denies nothing)"),
            _ => limit_text(rule, rule.limit(None)),
        };
        let (name, readable) = (gate.name().to_owned(), gate.readable_name());
        Self { name, readable, quota, origin: Some((file.to_owned(), line)) }
    }

    /// A bucket's state has its quota; of others, the form shows the algorithm and the window.
    fn of_state(found: &Found) -> Self {
        let quota = found.usage.as_ref().ok().and_then(|usage| usage.quota);
        let quota = quota.map_or_else(|| found.name.shape.to_string(), |quota| quota.to_string());
        let name = found.name.gate.clone();
        Self { readable: name.clone(), name, quota, origin: None }
    }

    fn cells(&self) -> Vec<Text> {
        let origin = self.origin.as_ref().map_or_else(|| "-".into(), |(file, line)| format!("{file}:{line}"));
        let name = Text(Tone::Faint, self.name.clone());
        vec![self.readable.as_str().into(), self.quota.as_str().into(), origin.into(), name]
    }

    fn json(&self) -> Value {
        let (file, line) = self.origin.as_ref().map(|(file, line)| (file, line)).unzip();
        json!({ "gate": self.name, "readable": self.readable, "quota": self.quota, "file": file, "line": line })
    }
}
