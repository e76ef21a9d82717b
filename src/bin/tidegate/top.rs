//! `top`: the most used keys. Live it looks at a part of the keys each time, and again at those that
//! have used most, so that a look costs Redis the same however many keys there are.

mod screen;

use serde_json::json;
use tidegate::internals::{Found, Inspector, Name, Scan};

use crate::args::Top;
use crate::failure::Failure;
use crate::output::{Output, Text, Tone};
use crate::state;
use crate::survey::{Ranking, Survey};

pub(crate) use self::screen::show;

/// How many keys are looked at each time, and how often SCAN is called for them.
const KEYS_A_LOOK: usize = 10_000;
const CALLS_A_LOOK: usize = 50;

/// All keys, once.
pub(crate) async fn once(top: &Top, inspector: &Inspector, out: Output) -> Result<bool, Failure> {
    let survey = Survey::of(inspector, top.gate.as_deref(), usize::from(top.limit)).await?;
    let shown = survey.ranking.best();
    let mut lines = state::listed(shown);
    lines.push(vec![Text(Tone::Faint, format!("{} of {} keys", shown.len(), survey.keys))]);
    lines.extend(survey.notes().into_iter().map(|note| vec![Text(Tone::Warn, note)]));
    let json = json!({
        "namespace": inspector.namespace(),
        "keys": survey.keys,
        "states": shown.iter().map(state::told).collect::<Vec<_>>(),
        "notes": survey.notes(),
    });
    out.say(&json, &lines)?;
    Ok(survey.keys > 0)
}

/// Looks again and again.
#[derive(Debug)]
struct Watch {
    inspector: Inspector,
    gate: Option<String>,
    limit: usize,
    scan: Scan,
    ranking: Ranking,
    /// In this round, and in the last that was whole.
    looked_at: u64,
    last_round: Option<u64>,
}

impl Watch {
    fn new(inspector: Inspector, gate: Option<String>, limit: usize) -> Self {
        let scan = inspector.all(gate.as_deref());
        Self { inspector, gate, limit, scan, ranking: Ranking::new(limit), looked_at: 0, last_round: None }
    }

    async fn look(&mut self) -> Result<(), Failure> {
        let names: Vec<Name> = self.ranking.best().iter().map(|found| found.name.clone()).collect();
        let mut ranking = Ranking::new(self.limit);
        let again = self.inspector.read(&names).await?;
        again.into_iter().for_each(|found| ranking.add(found));
        let mut looked_at = 0;
        for _ in 0..CALLS_A_LOOK {
            if looked_at >= KEYS_A_LOOK {
                break;
            }
            let page = match self.scan.next().await {
                Ok(page) => page,
                Err(error) => {
                    // A cursor is of no use to another connection's server.
                    self.begin_round();
                    return Err(error.into());
                }
            };
            let Some(mut page) = page else {
                self.last_round = Some(self.looked_at);
                self.begin_round();
                break;
            };
            page.names.retain(|name| self.gate.as_ref().is_none_or(|gate| name.gate == *gate));
            looked_at += page.names.len();
            self.looked_at += page.names.len() as u64;
            for found in self.inspector.read(&page.names).await? {
                ranking.add(found);
            }
        }
        self.ranking = ranking;
        Ok(())
    }

    fn begin_round(&mut self) {
        self.scan = self.inspector.all(self.gate.as_deref());
        self.looked_at = 0;
    }

    fn shown(&self) -> &[Found] {
        self.ranking.best()
    }
}
