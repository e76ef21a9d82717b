//! The denials of a key that are counted for a ban, as `inspect` shows them.

use serde_json::{Value, json};
use tidegate::Error;
use tidegate::admin::{CountedDenials, Inspector, Name};

use crate::failure::Failure;
use crate::output::{Text, Tone, table};
use crate::units::human;

/// The states whose keys have counted denials, with them, or with the error of a count that tidegate did not write.
pub(crate) struct Denials(Vec<(Name, Result<CountedDenials, Error>)>);

impl Denials {
    /// Reads the denials of these states, at most `limit` of them.
    pub(crate) async fn read(inspector: &Inspector, names: &[Name], limit: usize) -> Result<Self, Failure> {
        let mut all = Vec::new();
        for name in names.iter().take(limit) {
            match inspector.denials(name).await {
                Ok(Some(denials)) => all.push((name.clone(), Ok(denials))),
                // They have expired since the scan.
                Ok(None) => {}
                Err(error) if error.is_corrupt_state() => all.push((name.clone(), Err(error))),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Self(all))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the first error of a corrupt count. Called after the counts are printed.
    pub(crate) fn ensure_readable(&self) -> Result<(), Failure> {
        self.0
            .iter()
            .try_for_each(|(_, denials)| denials.as_ref().map(drop).map_err(|error| error.clone().into()))
    }

    /// Returns a table, one row per state.
    pub(crate) fn lines(&self) -> Vec<Vec<Text>> {
        if self.is_empty() {
            return Vec::new();
        }
        let row = |(name, denials): &(Name, Result<CountedDenials, Error>)| {
            let mut row: Vec<Text> = vec![name.gate.as_str().into(), name.shape.to_string().into()];
            match denials {
                Ok(denials) => row.extend([denials.count.to_string().into(), human(denials.ends_in).into()]),
                Err(error) => row.push(Text(Tone::Bad, format!("not readable: {error}"))),
            }
            row
        };
        let mut lines = vec![vec![Text::default()]];
        let header = ["gate", "stored as", "denials counted for a ban", "count ends in"];
        lines.extend(table(&header, self.0.iter().map(row).collect()));
        lines
    }

    pub(crate) fn json(&self) -> Value {
        let of_state = |(name, denials): &(Name, Result<CountedDenials, Error>)| {
            let (denials, error) = (denials.as_ref().ok(), denials.as_ref().err());
            json!({
                "gate": name.gate,
                "stored_as": name.shape.to_string(),
                "redis_key": name.redis_key,
                "count": denials.map(|denials| denials.count),
                "ends_in_us": denials.map(|denials| denials.ends_in.as_micros() as u64),
                "error": error.map(ToString::to_string),
            })
        };
        self.0.iter().map(of_state).collect()
    }
}
