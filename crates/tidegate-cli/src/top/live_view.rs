//! The ranking of the live view. Each refresh reads a part of the keys, and again the current most used keys.

use tidegate::admin::{Found, Inspector, Name, Scan};

use crate::failure::Failure;
use crate::survey::Ranking;

/// The maximum keys and SCAN calls per refresh.
const KEYS_PER_REFRESH: usize = 10_000;
const SCANS_PER_REFRESH: usize = 50;

/// The ranking of the live view, refreshed repeatedly.
#[derive(Debug)]
pub(super) struct LiveView {
    inspector: Inspector,
    pub(super) gate: Option<String>,
    pub(super) limit: usize,
    scan: Scan,
    ranking: Ranking,
    /// The keys read in this round of the scan.
    pub(super) keys_read: u64,
    /// The keys read in the last complete round.
    pub(super) last_round: Option<u64>,
}

impl LiveView {
    pub(super) fn new(inspector: Inspector, gate: Option<String>, limit: usize) -> Self {
        let scan = inspector.scan(gate.as_deref());
        Self { inspector, gate, limit, scan, ranking: Ranking::new(limit), keys_read: 0, last_round: None }
    }

    /// Reads the current most used keys again, and the next pages of the scan.
    pub(super) async fn refresh(&mut self) -> Result<(), Failure> {
        let names: Vec<Name> = self.ranking.best().iter().map(|found| found.name.clone()).collect();
        let mut ranking = Ranking::new(self.limit);
        let current = self.inspector.read(&names).await?;
        current.into_iter().for_each(|found| ranking.add(found));
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
                    return Err(error.into());
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
            for found in self.inspector.read(&page.names).await? {
                ranking.add(found);
            }
        }
        self.ranking = ranking;
        Ok(())
    }

    fn begin_round(&mut self) {
        self.scan = self.inspector.scan(self.gate.as_deref());
        self.keys_read = 0;
    }

    pub(super) fn shown(&self) -> &[Found] {
        self.ranking.best()
    }
}
