//! `inspect`, and how a key's state is said.

use std::ffi::OsStr;

use serde_json::{Value, json};
use tidegate::Quota;
use tidegate::internals::{Found, Inspector, Name};

use crate::args::{AsStored, Inspect};
use crate::failure::Failure;
use crate::orders;
use crate::output::{Output, Text, Tone, table};
use crate::survey::Survey;
use crate::units::{human, units};

/// More states than this of one key are not looked at: gates are few.
pub(crate) const MOST_STATES: usize = 10_000;

/// Whether something was found.
pub(crate) async fn run(inspect: &Inspect, inspector: &Inspector, out: Output) -> Result<bool, Failure> {
    let (gate, limit) = (inspect.gate.as_deref(), usize::from(inspect.limit));
    let orders = inspector.orders().await?;
    let Some(key) = &inspect.key else {
        let mut survey = Survey::of(inspector, gate, limit).await?;
        survey.orders = orders::note(&orders, gate, None);
        return match gate {
            Some(gate) => of_gate(gate, &survey, inspector, out),
            None => of_namespace(&survey, limit, inspector, out),
        };
    };
    let Sought { found, mut survey } = find(inspector, gate, key, &inspect.as_stored).await?;
    let written = written(inspector, key, &inspect.as_stored)?;
    survey.orders = orders::note(&orders, gate, Some(&written));
    let shown = &found[..found.len().min(limit)];
    let rows = shown.iter().map(|found| {
        let (gate, stored) =
            (found.name.gate.as_str().into(), Text(Tone::Faint, found.name.redis_key.clone()));
        [vec![gate], cells(found), vec![stored]].concat()
    });
    let mut lines = table(
        &["gate", "quota", "used", "as new in", "blocked for", "expires in", "redis key"],
        rows.collect(),
    );
    if found.is_empty() {
        lines = vec![vec![nothing(inspector, gate, key, &inspect.as_stored).into()]];
    }
    lines.extend(said(more(found.len(), shown.len()).into_iter().chain(survey.notes())));
    let json = json!({
        "namespace": inspector.namespace(),
        "states": shown.iter().map(told).collect::<Vec<_>>(),
        "more": found.len() - shown.len(),
        "notes": survey.notes(),
    });
    out.say(&json, &lines)?;
    is_good(&found, !found.is_empty())
}

/// Fails where something cannot be read, which has been shown by then.
fn is_good(shown: &[Found], is_found: bool) -> Result<bool, Failure> {
    match shown.iter().find_map(|found| found.usage.as_ref().err()) {
        Some(error) => Err(error.clone().into()),
        None => Ok(is_found),
    }
}

/// What was found of one key.
pub(crate) struct Sought {
    pub(crate) found: Vec<Found>,
    /// For what else there was.
    pub(crate) survey: Survey,
}

/// The state of a key at one gate or at all, found by going through all keys.
pub(crate) async fn find(
    inspector: &Inspector,
    gate: Option<&str>,
    key: &OsStr,
    as_stored: &AsStored,
) -> Result<Sought, Failure> {
    let mut names: Vec<Name> = Vec::new();
    let mut survey = Survey::new(0);
    for written in written(inspector, key, as_stored)? {
        let mut scan = inspector.of_key(gate, &written);
        while let Some(page) = scan.next().await? {
            survey.count_others(&page);
            // A longer key may end alike.
            names.extend(
                page.names
                    .into_iter()
                    .filter(|name| name.written == written && gate.is_none_or(|gate| name.gate == gate)),
            );
            if names.len() > MOST_STATES {
                return Err(Failure::usage(format!(
                    "this key has more than {MOST_STATES} states: say --gate"
                )));
            }
        }
    }
    names.sort_by(|a, b| a.redis_key.cmp(&b.redis_key));
    names.dedup();
    let mut found = inspector.read(&names).await?;
    found.sort_by(|a, b| a.name.redis_key.cmp(&b.name.redis_key));
    Ok(Sought { found, survey })
}

/// How it may stand in Redis.
pub(crate) fn written(
    inspector: &Inspector,
    key: &OsStr,
    as_stored: &AsStored,
) -> Result<Vec<String>, Failure> {
    match (as_stored.stored, key.to_str()) {
        (false, _) => Ok(inspector.written(key.as_encoded_bytes())),
        (true, Some(key)) if key.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(vec![key.to_owned()]),
        (true, _) => {
            Err(Failure::usage("no key is stored so: what is not printable is written as % and two digits"))
        }
    }
}

/// That nothing was found, and why that may be.
pub(crate) fn nothing(
    inspector: &Inspector,
    gate: Option<&str>,
    key: &OsStr,
    as_stored: &AsStored,
) -> String {
    let at = gate.map(|gate| format!(" at {gate}")).unwrap_or_default();
    let is_written = !as_stored.stored && key.as_encoded_bytes().contains(&b'%');
    let hint = if is_written { "; if that is how it is written in Redis, add --stored" } else { "" };
    format!(
        "nothing is stored of {}{at} under the namespace {}: it is as if it had never been asked for{hint}",
        key.display(),
        inspector.namespace(),
    )
}

fn of_gate(gate: &str, survey: &Survey, inspector: &Inspector, out: Output) -> Result<bool, Failure> {
    let shown = survey.ranking.best();
    let keys = survey.keys;
    let blocked: u64 = survey.groups.values().map(|group| group.blocked).sum();
    let mut lines = listed(shown);
    if keys == 0 {
        let text =
            format!("nothing is stored of the gate {gate} under the namespace {}", inspector.namespace());
        lines = vec![vec![text.into()]];
    } else {
        lines.insert(0, vec![format!("{gate}: {keys} keys, {blocked} blocked").into()]);
    }
    lines.extend(said(survey.notes()));
    let json = json!({
        "namespace": inspector.namespace(),
        "gate": gate,
        "keys": keys,
        "blocked": blocked,
        "states": shown.iter().map(told).collect::<Vec<_>>(),
        "more": keys.saturating_sub(shown.len() as u64),
        "notes": survey.notes(),
    });
    out.say(&json, &lines)?;
    // What cannot be read is first in the ranking.
    is_good(survey.ranking.best(), survey.keys > 0)
}

fn of_namespace(survey: &Survey, limit: usize, inspector: &Inspector, out: Output) -> Result<bool, Failure> {
    let groups = || survey.groups.iter().take(limit);
    let rows = groups().map(|((gate, shape), group)| {
        vec![
            gate.as_str().into(),
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
        let text =
            format!("nothing is stored under the namespace {namespace}: is it the limiter's (--namespace)?");
        lines = vec![vec![text.into()]];
    }
    lines.extend(said(more(survey.groups.len(), limit).into_iter().chain(survey.notes())));
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
    out.say(&json, &lines)?;
    // What cannot be read is first in the ranking.
    is_good(survey.ranking.best(), survey.keys > 0)
}

/// Keys of several gates, one in each line.
pub(crate) fn listed(shown: &[Found]) -> Vec<Vec<Text>> {
    let rows = shown.iter().map(|found| {
        let name = &found.name;
        [vec![name.written.as_str().into(), name.gate.as_str().into()], cells(found)].concat()
    });
    table(&HEADER, rows.collect())
}

pub(crate) const HEADER: [&str; 7] =
    ["key", "gate", "quota", "used", "as new in", "blocked for", "expires in"];

/// What of a key is told in columns.
pub(crate) fn cells(found: &Found) -> Vec<Text> {
    let expires =
        found.expires_in.map_or_else(|| Text(Tone::Warn, "never".to_owned()), |left| human(left).into());
    let usage = match &found.usage {
        Ok(usage) => usage,
        Err(error) => {
            let why = Text(Tone::Bad, format!("not readable: {error}"));
            return vec![found.name.shape.to_string().into(), why];
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

/// A state in JSON.
pub(crate) fn told(found: &Found) -> Value {
    let Name { gate, shape, written, redis_key, .. } = &found.name;
    let usage = found.usage.as_ref().ok();
    let us = |duration: std::time::Duration| duration.as_micros() as u64;
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
    (all > shown).then(|| format!("and {} more: --limit shows more", all - shown))
}

fn said(notes: impl IntoIterator<Item = String>) -> impl Iterator<Item = Vec<Text>> {
    notes.into_iter().map(|note| vec![Text(Tone::Warn, note)])
}
