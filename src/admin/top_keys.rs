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
    /// `None` before a round. A refresh takes it out, and puts it back when it has succeeded: a failed refresh may have
    /// lost a page, and after a reconnect the server can be another one, where the cursor is invalid.
    round: Option<Round>,
    rankings: Vec<Ranking>,
    last_round: Option<u64>,
}

/// A scan that reads each key once.
#[derive(Debug)]
struct Round {
    scan: Scan,
    keys_read: u64,
}

impl TopKeys {
    /// Makes rankings of the keys of one gate, or of all. They are empty before the first [`refresh`](Self::refresh).
    #[must_use]
    pub const fn new(inspector: Inspector, gate: Option<String>, rankings: Vec<Ranking>) -> Self {
        Self { inspector, gate, round: None, rankings, last_round: None }
    }

    /// Reads the ranked keys again, and then up to 10,000 more keys.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`] if Redis did not answer. The rankings then stay as they were, the next refresh starts a
    /// new round, and [`last_round`](Self::last_round) returns `None` until its end.
    ///
    /// # Cancel safety
    ///
    /// A dropped refresh counts as a failed one.
    pub async fn refresh(&mut self) -> Result<(), Error> {
        let last_round = self.last_round.take();
        let mut round = self.round.take().unwrap_or_else(|| self.new_round());
        let mut names: Vec<Name> = Vec::new();
        for found in self.rankings.iter().flat_map(Ranking::best) {
            if !names.contains(&found.name) {
                names.push(found.name.clone());
            }
        }
        let mut rankings: Vec<Ranking> = self.rankings.iter().map(Ranking::emptied).collect();
        add_all(&mut rankings, self.inspector.read(&names).await?);
        let (mut keys_read, mut complete) = (0, None);
        for _ in 0..SCANS_PER_REFRESH {
            if keys_read >= KEYS_PER_REFRESH {
                break;
            }
            let Some(mut page) = round.scan.next().await? else {
                complete = Some(round.keys_read);
                round = self.new_round();
                break;
            };
            page.names.retain(|name| self.gate.as_ref().is_none_or(|gate| name.gate == *gate));
            keys_read += page.names.len();
            round.keys_read += page.names.len() as u64;
            add_all(&mut rankings, self.inspector.read(&page.names).await?);
        }
        (self.rankings, self.last_round, self.round) = (rankings, complete.or(last_round), Some(round));
        Ok(())
    }

    fn new_round(&self) -> Round {
        Round { scan: self.inspector.scan(self.gate.as_deref()), keys_read: 0 }
    }

    /// Returns the rankings, in the order in which they were passed.
    #[must_use]
    pub fn rankings(&self) -> &[Ranking] {
        &self.rankings
    }

    /// Returns the number of keys read in this round, which reads each key once.
    #[must_use]
    pub fn keys_read(&self) -> u64 {
        self.round.as_ref().map_or(0, |round| round.keys_read)
    }

    /// Returns the number of keys read in the last complete round; `None` before its end, and after a refresh that failed.
    /// While it is `None`, the rankings may lack keys.
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
