//! `inspect`, and the display of a key's state.

use serde_json::{Value, json};
use tidegate::admin::{CountedDenials, Found, Inspector, KeyStates, Name};
use tidegate::{Error, Limiter, Quota};

use crate::args::Inspect;
use crate::failure::Failure;
use crate::gate_names::GateNames;
use crate::holds::Holds;
use crate::output::{Output, Text, Tone, table};
use crate::survey::Survey;
use crate::units::{counted, human, units, us};
use crate::{given_key, holders, overrides};

/// Shows the state of a key, a gate or the namespace. Returns whether there is any.
pub(crate) async fn run(inspect: &Inspect, limiter: &Limiter, out: Output) -> Result<bool, Failure> {
    let ((gate, names), limit) = (inspect.gate.read(limiter, out)?, usize::from(inspect.limit));
    let (gate, inspector) = (gate.as_deref(), &Inspector::new(limiter)?);
    let Some(key) = &inspect.key else {
        let mut survey = Survey::of(inspector, gate, limit).await?;
        survey.overrides = overrides::note(limiter, gate, None).await;
        return match gate {
            Some(gate) => show_gate(gate, &survey, inspector, &names, out),
            None => show_namespace(&survey, limit, inspector, &names, out),
        };
    };
    let (hint, key) = (given_key::hint(key, &inspect.as_stored), inspect.as_stored.key(key)?);
    let written = inspector.stored_forms(&key);
    let KeyStates { found, with_holds, with_denials, others } = inspector.find_key(gate, &written).await?;
    let mut survey = Survey::new(0);
    survey.count_others(&others);
    survey.overrides = overrides::note(limiter, gate, Some(&written)).await;
    let holds = Holds::read(inspector, &with_holds, limit).await?;
    let denials = Denials::read(inspector, &with_denials, limit).await?;
    let shown = &found[..found.len().min(limit)];
    let rows = shown.iter().map(|found| {
        let (gate, stored) =
            (names.shown(&found.name.gate).into(), Text(Tone::Faint, found.name.redis_key.clone()));
        [vec![gate], cells(found), vec![stored]].concat()
    });
    let mut lines = table(
        &["gate", "quota", "used", "resets in", "blocked for", "expires in", "redis key"],
        rows.collect(),
    );
    let holders = holders::read(inspector, shown).await?;
    lines.extend(holders::lines(shown, &holders, limit, &names));
    if found.is_empty() {
        let hint = match (gate, hint) {
            (None, "") => "; for all keys of a gate, write --gate NAME",
            _ => hint,
        };
        lines = vec![vec![(inspector.no_state(gate, &key) + hint).into()]];
    }
    lines.extend(holds.lines(&names));
    lines.extend(denials.lines(&names));
    lines.extend(note_lines(more(found.len(), shown.len()).into_iter().chain(survey.notes())));
    let states = shown.iter().zip(&holders).map(|(found, holders)| {
        let mut state = state_json(found);
        holders::add_json(&mut state, holders.as_ref());
        state
    });
    let json = json!({
        "namespace": inspector.namespace(),
        "states": states.collect::<Vec<_>>(),
        "holds": holds.json(),
        "denials": denials.json(),
        "more": found.len() - shown.len(),
        "notes": survey.notes(),
    });
    out.print(&json, &lines)?;
    denials.ensure_readable()?;
    ensure_readable(&found, !found.is_empty() || !holds.is_empty() || !denials.is_empty())
}

/// Returns `is_found`, or the first error of an unreadable state. Called after the states are printed.
fn ensure_readable<'f>(shown: impl IntoIterator<Item = &'f Found>, is_found: bool) -> Result<bool, Failure> {
    match shown.into_iter().find_map(|found| found.usage.as_ref().err()) {
        Some(error) => Err(error.clone().into()),
        None => Ok(is_found),
    }
}

fn show_gate(
    gate: &str,
    survey: &Survey,
    inspector: &Inspector,
    names: &GateNames,
    out: Output,
) -> Result<bool, Failure> {
    let shown = survey.ranking.best();
    let keys = survey.keys;
    let blocked: u64 = survey.groups.values().map(|group| group.blocked).sum();
    let mut lines = state_table(shown.clone(), names);
    let title = names.shown(gate);
    if keys == 0 {
        let text = format!("no state of gate {title} in namespace {}", inspector.namespace());
        lines = vec![vec![text.into()]];
    } else {
        lines.insert(0, vec![format!("{title}: {}, {blocked} blocked", counted(keys, "key")).into()]);
    }
    lines.extend(note_lines(survey.notes()));
    let json = json!({
        "namespace": inspector.namespace(),
        "gate": gate,
        "keys": keys,
        "blocked": blocked,
        "states": shown.clone().map(state_json).collect::<Vec<_>>(),
        "more": keys.saturating_sub(shown.len() as u64),
        "notes": survey.notes(),
    });
    out.print(&json, &lines)?;
    // Unreadable states are first in the ranking.
    ensure_readable(survey.ranking.best(), survey.keys > 0)
}

fn show_namespace(
    survey: &Survey,
    limit: usize,
    inspector: &Inspector,
    names: &GateNames,
    out: Output,
) -> Result<bool, Failure> {
    let groups = || survey.groups.iter().take(limit);
    let rows = groups().map(|((gate, shape), group)| {
        vec![
            names.shown(gate).into(),
            shape.to_string().into(),
            group.keys.to_string().into(),
            match group.blocked {
                0 => "-".into(),
                blocked => Text(Tone::Warn, blocked.to_string()),
            },
            units(group.most_used).into(),
            match group.unreadable {
                0 => Text::default(),
                count => Text(Tone::Bad, format!("{count} not readable")),
            },
        ]
    });
    let mut lines = table(&["gate", "stored as", "keys", "blocked", "most used"], rows.collect());
    let namespace = inspector.namespace();
    if survey.groups.is_empty() {
        let text = format!("no state in namespace {namespace}: check that --namespace is the limiter's");
        lines = vec![vec![text.into()]];
    }
    lines.extend(note_lines(more(survey.groups.len(), limit).into_iter().chain(survey.notes())));
    let gates = groups().map(|((gate, shape), group)| {
        json!({
            "gate": gate,
            "stored_as": shape.to_string(),
            "keys": group.keys,
            "blocked": group.blocked,
            "unreadable": group.unreadable,
            "most_used": group.most_used,
        })
    });
    let json = json!({
        "namespace": namespace,
        "keys": survey.keys,
        "gates": gates.collect::<Vec<_>>(),
        "more": survey.groups.len().saturating_sub(limit),
        "notes": survey.notes(),
    });
    out.print(&json, &lines)?;
    // Unreadable states are first in the ranking.
    ensure_readable(survey.ranking.best(), survey.keys > 0)
}

/// Returns a table of states, one per row.
pub(crate) fn state_table<'f>(shown: impl Iterator<Item = &'f Found>, names: &GateNames) -> Vec<Vec<Text>> {
    table(&HEADER, shown.map(|found| row(found, names)).collect())
}

/// Returns the cells of a row below [`HEADER`].
pub(crate) fn row(found: &Found, names: &GateNames) -> Vec<Text> {
    let name = &found.name;
    [vec![name.written.as_str().into(), names.shown(&name.gate).into()], cells(found)].concat()
}

pub(crate) const HEADER: [&str; 7] =
    ["key", "gate", "quota", "used", "resets in", "blocked for", "expires in"];

/// Returns the cells of a state, from the column `quota` on.
fn cells(found: &Found) -> Vec<Text> {
    let expires =
        found.expires_in.map_or_else(|| Text(Tone::Warn, "never".to_owned()), |left| human(left).into());
    let usage = match &found.usage {
        Ok(usage) => usage,
        Err(error) => {
            let message = Text(Tone::Bad, format!("not readable: {error}"));
            return vec![found.name.shape.to_string().into(), message];
        }
    };
    let limit = usage.quota.as_ref().map(Quota::limit);
    let is_full = limit.is_some_and(|limit| usage.used > limit as f64 - 1.0);
    let used = match limit {
        Some(limit) => format!("{} of {limit}", units(usage.used)),
        None => units(usage.used),
    };
    vec![
        usage.quota.map_or_else(|| found.name.shape.to_string(), |quota| quota.to_string()).into(),
        Text(if is_full { Tone::Bad } else { Tone::Plain }, used),
        human(usage.reset_after).into(),
        usage.blocked_for.map_or_else(|| "-".into(), |left| Text(Tone::Warn, human(left))),
        expires,
    ]
}

/// Returns a state as JSON.
pub(crate) fn state_json(found: &Found) -> Value {
    let Name { gate, shape, written, redis_key, .. } = &found.name;
    let usage = found.usage.as_ref().ok();
    json!({
        "gate": gate,
        "stored_as": shape.to_string(),
        "key": found.name.key().and_then(|key| String::from_utf8(key).ok()),
        "written": written,
        "redis_key": redis_key,
        "used": usage.map(|usage| usage.used),
        "limit": usage.and_then(|usage| Some(usage.quota?.limit())),
        "quota": usage.and_then(|usage| Some(usage.quota?.to_string())),
        "reset_after_us": usage.map(|usage| us(usage.reset_after)),
        "blocked_for_us": usage.and_then(|usage| usage.blocked_for).map(us),
        "expires_in_us": found.expires_in.map(us),
        "error": found.usage.as_ref().err().map(ToString::to_string),
    })
}

fn more(all: usize, shown: usize) -> Option<String> {
    (all > shown).then(|| format!("and {} more: increase --limit", all - shown))
}

fn note_lines(notes: impl IntoIterator<Item = String>) -> impl Iterator<Item = Vec<Text>> {
    notes.into_iter().map(|note| vec![Text(Tone::Warn, note)])
}

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
    pub(crate) fn lines(&self, names: &GateNames) -> Vec<Vec<Text>> {
        if self.is_empty() {
            return Vec::new();
        }
        let row = |(name, denials): &(Name, Result<CountedDenials, Error>)| {
            let mut row: Vec<Text> = vec![names.shown(&name.gate).into(), name.shape.to_string().into()];
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
