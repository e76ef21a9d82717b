//! Rankings of all keys, kept current. Each refresh reads a part of the keys, and again the ranked keys. So a refresh
//! costs Redis the same, regardless of the number of keys.

use super::{Found, Inspector, Name, Ranking, Scan};
use crate::error::Error;

/// The maximum keys and SCAN calls per refresh.
const KEYS_PER_REFRESH: usize = 10_000;
const SCANS_PER_REFRESH: usize = 50;

/// Rankings of all keys of a namespace or of a gate, refreshed repeatedly.
#[derive(Debug)]
pub struct TopKeys {
    inspector: Inspector,
    gate: Option<String>,
    scan: Scan,
    rankings: Vec<Ranking>,
    keys_read: u64,
    last_round: Option<u64>,
}

impl TopKeys {
    /// Makes rankings of the keys of one gate, or of all. They are empty before the first [`refresh`](Self::refresh).
    #[must_use]
    pub fn new(inspector: Inspector, gate: Option<String>, rankings: Vec<Ranking>) -> Self {
        let scan = inspector.scan(gate.as_deref());
        Self { inspector, gate, scan, rankings, keys_read: 0, last_round: None }
    }

    /// Reads the ranked keys again, and then up to 10,000 more keys.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`] if Redis did not answer. The rankings then stay as they were, and the next refresh starts
    /// a new round.
    pub async fn refresh(&mut self) -> Result<(), Error> {
        let mut names: Vec<Name> = Vec::new();
        for found in self.rankings.iter().flat_map(Ranking::best) {
            if !names.contains(&found.name) {
                names.push(found.name.clone());
            }
        }
        let mut rankings: Vec<Ranking> = self.rankings.iter().map(Ranking::emptied).collect();
        add_all(&mut rankings, self.inspector.read(&names).await?);
        let mut keys_read = 0;
        for _ in 0..SCANS_PER_REFRESH {
            if keys_read >= KEYS_PER_REFRESH {
                break;
            }
            let page = match self.scan.next().await {
                Ok(page) => page,
                Err(error) => {
                    // After a reconnect the server can be another one, where the cursor is invalid.
                    self.begin_round();
                    return Err(error);
                }
            };
            let Some(mut page) = page else {
                self.last_round = Some(self.keys_read);
                self.begin_round();
                break;
            };
            page.names.retain(|name| self.gate.as_ref().is_none_or(|gate| name.gate == *gate));
            keys_read += page.names.len();
            self.keys_read += page.names.len() as u64;
            add_all(&mut rankings, self.inspector.read(&page.names).await?);
        }
        self.rankings = rankings;
        Ok(())
    }

    fn begin_round(&mut self) {
        self.scan = self.inspector.scan(self.gate.as_deref());
        self.keys_read = 0;
    }

    /// Returns the rankings, in the order in which they were passed.
    #[must_use]
    pub fn rankings(&self) -> &[Ranking] {
        &self.rankings
    }

    /// Returns the number of keys read in this round, which reads each key once.
    #[must_use]
    pub const fn keys_read(&self) -> u64 {
        self.keys_read
    }

    /// Returns the number of keys read in the last complete round; `None` before its end.
    #[must_use]
    pub const fn last_round(&self) -> Option<u64> {
        self.last_round
    }
}

fn add_all(rankings: &mut [Ranking], found: Vec<Found>) {
    for found in found {
        rankings.iter_mut().for_each(|ranking| ranking.add(found.clone()));
    }
}
