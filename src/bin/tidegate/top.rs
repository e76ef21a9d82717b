//! `top`: the most used keys. Each live refresh reads a part of the keys, and again the current most used keys.
//! Therefore a refresh costs Redis the same, regardless of the number of keys.

mod screen;

use serde_json::json;
use tidegate::internals::{Found, Inspector, Name, Scan};

use crate::args::Top;
use crate::failure::Failure;
use crate::output::{Output, Text, Tone};
use crate::state;
use crate::survey::{Ranking, Survey};

pub(crate) use self::screen::show;

/// The maximum keys and SCAN calls per refresh.
const KEYS_PER_REFRESH: usize = 10_000;
const SCANS_PER_REFRESH: usize = 50;

/// Reads all keys once and prints the most used.
pub(crate) async fn once(top: &Top, inspector: &Inspector, out: Output) -> Result<bool, Failure> {
    let survey = Survey::of(inspector, top.gate.as_deref(), usize::from(top.limit)).await?;
    let shown = survey.ranking.best();
    let mut lines = state::state_table(shown);
    lines.push(vec![Text(Tone::Faint, format!("{} of {} keys", shown.len(), survey.keys))]);
    lines.extend(survey.notes().into_iter().map(|note| vec![Text(Tone::Warn, note)]));
    let json = json!({
        "namespace": inspector.namespace(),
        "keys": survey.keys,
        "states": shown.iter().map(state::state_json).collect::<Vec<_>>(),
        "notes": survey.notes(),
    });
    out.print(&json, &lines)?;
    Ok(survey.keys > 0)
}

/// The ranking of the live view, refreshed repeatedly.
#[derive(Debug)]
struct LiveView {
    inspector: Inspector,
    gate: Option<String>,
    limit: usize,
    scan: Scan,
    ranking: Ranking,
    /// The keys read in this round of the scan.
    keys_read: u64,
    /// The keys read in the last complete round.
    last_round: Option<u64>,
}

impl LiveView {
    fn new(inspector: Inspector, gate: Option<String>, limit: usize) -> Self {
        let scan = inspector.all(gate.as_deref());
        Self { inspector, gate, limit, scan, ranking: Ranking::new(limit), keys_read: 0, last_round: None }
    }

    /// Reads the current most used keys again, and the next pages of the scan.
    async fn refresh(&mut self) -> Result<(), Failure> {
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
        self.scan = self.inspector.all(self.gate.as_deref());
        self.keys_read = 0;
    }

    fn shown(&self) -> &[Found] {
        self.ranking.best()
    }
}
