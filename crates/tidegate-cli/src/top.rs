//! `top`: the most used keys.

mod screen;

use serde_json::json;
use tidegate::admin::Inspector;

use crate::args::Top;
use crate::failure::Failure;
use crate::output::{Output, Text, Tone};
use crate::state;
use crate::survey::Survey;

pub(crate) use self::screen::show;

/// Reads all keys once and prints the most used.
pub(crate) async fn once(top: &Top, inspector: &Inspector, out: Output) -> Result<bool, Failure> {
    let survey = Survey::of(inspector, top.gate.as_deref(), usize::from(top.limit)).await?;
    let shown = survey.ranking.best();
    let mut lines = state::state_table(shown.clone());
    lines.push(vec![Text(Tone::Faint, format!("{} of {} keys", shown.len(), survey.keys))]);
    lines.extend(survey.notes().into_iter().map(|note| vec![Text(Tone::Warn, note)]));
    let json = json!({
        "namespace": inspector.namespace(),
        "keys": survey.keys,
        "states": shown.clone().map(state::state_json).collect::<Vec<_>>(),
        "notes": survey.notes(),
    });
    out.print(&json, &lines)?;
    Ok(survey.keys > 0)
}
