//! Compares the quota of a check with the stored state, and finds the quota in the state.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::time::Duration;

use tidegate::admin::{GivenKey, Inspector, Shape};
use tidegate::algorithm::ALGORITHMS;
use tidegate::{Gate, Limiter, Override, Quota};

use crate::failure::Failure;
use crate::quota::HOW_TO_SPECIFY;

/// The maximum pages that are read to find how a gate's other keys are stored: 100,000 keys of the database.
const MAX_PAGES: usize = 100;

/// The stored state of a key, at the gate of a check.
#[derive(Debug, Default)]
pub(crate) struct StoredState {
    pub(crate) blocked_for: Option<Duration>,
    /// The difference between the stored state and the quota of the check.
    pub(crate) mismatch: Option<String>,
}

/// Reads the state that a check of this key uses. If there is none, looks for state of another algorithm or
/// window.
pub(crate) async fn read(
    limiter: &Limiter,
    inspector: &Inspector,
    overrides: &[Override],
    gate: &Gate,
    key: &[u8],
) -> Result<StoredState, Failure> {
    let gate_name = gate.name().unwrap_or_default();
    let overriding = override_of(inspector, overrides, gate_name, key);
    let redis_key = match overriding {
        Some(quota) => limiter.try_gate(gate_name, quota)?.redis_key(key)?,
        None => gate.redis_key(key)?,
    };
    let Some(name) = inspector.parse(&redis_key) else { return Ok(StoredState::default()) };
    if let Some(found) = inspector.read(std::slice::from_ref(&name)).await?.first() {
        // The check itself reports unreadable state.
        let blocked_for = found.usage.as_ref().ok().and_then(|usage| usage.blocked_for);
        return Ok(StoredState { blocked_for, mismatch: None });
    }
    if overriding.is_some() {
        return Ok(StoredState::default());
    }
    let stored = shapes(inspector, gate_name, Some(&name.written)).await?;
    let mismatch = (!stored.is_empty() && !stored.contains(&name.shape)).then(|| {
        format!(
            "{gate_name} is stored as {}, but this check uses {}: services do not see its count; give the \
             services' quota, or their rules: --rules PATH",
            joined(&stored),
            name.shape
        )
    });
    Ok(StoredState { blocked_for: None, mismatch })
}

/// Returns the quota that the state of the key contains, or that an override gives it. Fails with the missing
/// option if the state does not contain the limit.
pub(crate) async fn quota(
    inspector: &Inspector,
    overrides: &[Override],
    gate: &str,
    key: &OsStr,
) -> Result<Quota, Failure> {
    if let Some(quota) = override_of(inspector, overrides, gate, key.as_encoded_bytes()) {
        return Ok(quota);
    }
    let key = GivenKey::Plain(key.as_encoded_bytes().to_vec());
    let found = inspector.find_key(Some(gate), &inspector.stored_forms(&key)).await?.found;
    match found.as_slice() {
        [found] => found.usage.as_ref().map_err(Clone::clone)?.quota.ok_or_else(|| {
            let shape = found.name.shape;
            Failure::usage(format!(
                "{key} at {gate} is stored as {shape}, which does not contain the limit: add `{}`, or --rules PATH",
                options(shape)
            ))
        }),
        [] => {
            let stored = shapes(inspector, gate, None).await?;
            let options: Vec<String> = stored.iter().map(|shape| format!("`{}`", options(*shape))).collect();
            Err(Failure::usage(match stored.is_empty() {
                true => format!("no state of gate {gate} in namespace {}: {HOW_TO_SPECIFY}", inspector.namespace()),
                false => format!(
                    "no state of {key} at {gate}, so its quota is unknown; other keys are stored as {}: add {}, or \
                     --rules PATH",
                    joined(&stored),
                    options.join(" or ")
                ),
            }))
        }
        several => {
            let stored = several.iter().map(|found| found.name.shape).collect();
            Err(Failure::usage(format!("{key} at {gate} is stored as {}: {HOW_TO_SPECIFY}", joined(&stored))))
        }
    }
}

/// Returns the quota that an override gives the key.
fn override_of(inspector: &Inspector, overrides: &[Override], gate: &str, key: &[u8]) -> Option<Quota> {
    let written = inspector.stored_forms(&GivenKey::Plain(key.to_vec()));
    overrides.iter().find_map(|entry| match entry {
        Override::Quota { gate: of, key, quota, .. } if of == gate && written.contains(key) => Some(*quota),
        _ => None,
    })
}

/// Returns the forms in which keys of a gate are stored: of the key `written`, if it has state, otherwise of the
/// other keys. Reads a bounded number of pages.
async fn shapes(
    inspector: &Inspector,
    gate: &str,
    written: Option<&str>,
) -> Result<BTreeSet<Shape>, Failure> {
    let (mut of_key, mut of_gate) = (BTreeSet::new(), BTreeSet::new());
    let mut scan = inspector.scan(Some(gate));
    for _ in 0..MAX_PAGES {
        let Some(page) = scan.next().await? else { break };
        for name in page.names.into_iter().filter(|name| name.gate == gate) {
            if written.is_some_and(|written| name.written == written) {
                of_key.insert(name.shape);
            }
            of_gate.insert(name.shape);
        }
    }
    Ok(if of_key.is_empty() { of_gate } else { of_key })
}

fn joined(shapes: &BTreeSet<Shape>) -> String {
    shapes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and as ")
}

/// Returns the options of a quota that is stored in this form: `--fixed-window LIMIT --window 60s`.
fn options(shape: Shape) -> String {
    let text = shape.to_string();
    let (algorithm, window) = text.split_once('/').unwrap_or((&text, ""));
    let limit =
        ALGORITHMS.iter().find(|known| known.name == algorithm).map_or("LIMIT", |known| known.limit_name);
    let option = format!("--{} {limit}", algorithm.replace('_', "-"));
    if shape.quota(1).is_ok_and(|quota| quota.calendar().is_some()) {
        return format!("{option} --calendar {window}");
    }
    match window.split_once("@clock") {
        // An in-flight limit has neither.
        None if shape.quota(1).is_ok_and(|quota| quota.is_in_flight()) => option,
        None if window.is_empty() => format!("{option} --rate RATE"),
        None => format!("{option} --window {window}"),
        Some((window, offset)) => {
            let offset = offset.strip_prefix('+').map(|offset| format!(" {offset}")).unwrap_or_default();
            format!("{option} --window {window} --by-clock{offset}")
        }
    }
}
