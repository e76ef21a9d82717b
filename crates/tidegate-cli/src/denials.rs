//! The denials of a key that are counted for a ban, as `inspect` shows them.

use serde_json::{Value, json};
use tidegate::admin::{CountedDenials, Inspector, Name};

use crate::failure::Failure;
use crate::output::{Text, table};
use crate::units::human;

/// The states whose keys have counted denials, with them.
pub(crate) struct Denials(Vec<(Name, CountedDenials)>);

impl Denials {
    /// Reads the denials of these states, at most `limit` of them.
    pub(crate) async fn read(inspector: &Inspector, names: &[Name], limit: usize) -> Result<Self, Failure> {
        let mut all = Vec::new();
        for name in names.iter().take(limit) {
            // They may have expired since the scan.
            if let Some(denials) = inspector.denials(name).await? {
                all.push((name.clone(), denials));
            }
        }
        Ok(Self(all))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a table, one row per state.
    pub(crate) fn lines(&self) -> Vec<Vec<Text>> {
        if self.is_empty() {
            return Vec::new();
        }
        let row = |(name, denials): &(Name, CountedDenials)| {
            vec![
                name.gate.as_str().into(),
                name.shape.to_string().into(),
                denials.count.to_string().into(),
                human(denials.ends_in).into(),
            ]
        };
        let mut lines = vec![vec![Text::default()]];
        let header = ["gate", "stored as", "denials counted for a ban", "count ends in"];
        lines.extend(table(&header, self.0.iter().map(row).collect()));
        lines
    }

    pub(crate) fn json(&self) -> Value {
        let of_state = |(name, denials): &(Name, CountedDenials)| {
            json!({
                "gate": name.gate,
                "stored_as": name.shape.to_string(),
                "redis_key": name.redis_key,
                "count": denials.count,
                "ends_in_us": denials.ends_in.as_micros() as u64,
            })
        };
        self.0.iter().map(of_state).collect()
    }
}
