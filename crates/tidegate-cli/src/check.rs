//! `check` and `peek`.

use std::ffi::OsStr;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};
use tidegate::{Decision, Limiter, Source, admin::Inspector};
use tidegate_rules::{Descriptor, Mode, RuleOutcome, RuleResult};

use crate::args::{Check, Request};
use crate::failure::Failure;
use crate::gate_names::GateNames;
use crate::output::{self, Output, Text, Tone, table};
use crate::quota::required_quota;
use crate::stored_quota;
use crate::units::human;

/// Checks a key or a request; without `charges`, peeks. Returns whether it is allowed.
pub(crate) async fn run(
    check: &Check,
    charges: bool,
    limiter: &Limiter,
    out: Output,
) -> Result<bool, Failure> {
    let cost = if charges { check.cost } else { 0 };
    match (&check.key, &check.gate) {
        (Some(key), Some(gate)) => check_gate(check, gate, key, cost, limiter, out).await,
        _ => check_rules(check, cost, limiter, out).await,
    }
}

async fn check_gate(
    check: &Check,
    gate: &str,
    key: &OsStr,
    cost: u64,
    limiter: &Limiter,
    out: Output,
) -> Result<bool, Failure> {
    // An invalid argument is reported without a call to Redis.
    let (named, given) = check.quota.gate(gate, limiter, out)?;
    let known = given.or(named.quota);
    if named.is_in_rules {
        required_quota(&named, given)?;
    }
    let inspector = Inspector::new(limiter)?;
    let overrides = limiter.control().overrides().await?;
    let quota = match known {
        Some(quota) => quota,
        None => stored_quota::quota(&inspector, &overrides, &named.name, key).await?,
    };
    let (gate, key) = (limiter.try_gate(&named.name, quota)?, key.as_encoded_bytes());
    if quota.is_in_flight() && cost > 0 {
        return Err(no_permit(&named.to_string()));
    }
    let stored = stored_quota::read(limiter, &inspector, &overrides, &gate, key).await?;
    inspector.read_overrides().await?;
    let decision = match quota.is_in_flight() {
        true => gate.peek(key).await?,
        false => gate.check_cost(key, cost).await?,
    };
    let mut json = decision_json(&decision);
    json["redis_key"] = gate.redis_key(key)?.into();
    json["quota"] = quota.to_string().into();
    json["blocked_for_us"] = stored.blocked_for.map(|left| left.as_micros() as u64).into();
    json["notes"] = stored.mismatch.iter().cloned().collect();
    let mut line = decision_text(&decision, stored.blocked_for);
    if known.is_none() {
        line.push(Text(Tone::Faint, format!(" (stored quota: {quota})")));
    }
    warn(out, stored.mismatch);
    out.print(&json, &[line])?;
    Ok(decision.is_allowed())
}

/// Returns the error for a check of an in-flight gate: a permit would end with this process.
fn no_permit(gate: &str) -> Failure {
    Failure::usage(format!(
        "{gate} limits operations in flight, and this program runs none that could hold a permit: use `peek`"
    ))
}

/// Prints notes. With `--json`, they are a part of the object.
fn warn(out: Output, notes: impl IntoIterator<Item = String>) {
    if !out.json {
        notes.into_iter().for_each(|note| output::warn(false, &note));
    }
}

async fn check_rules(check: &Check, cost: u64, limiter: &Limiter, out: Output) -> Result<bool, Failure> {
    let names = GateNames::load(check.quota.rules.as_deref(), out)?;
    let rules = names.rules().ok_or_else(|| Failure::usage("no rules given: add --rules PATH"))?;
    let limits = rules.bind(limiter);
    let entries = check.request.entries()?;
    let descriptors: Vec<Descriptor<'_>> =
        check.request.descriptors(&entries).into_iter().map(|descriptor| descriptor.hits(cost)).collect();
    let inspector = Inspector::new(limiter)?;
    let overrides = limiter.control().overrides().await?;
    let mut notes: Vec<String> = Vec::new();
    let plan = limits.plan(check.request.domain(), &descriptors);
    let mut checks = plan.checks().iter().chain(plan.shadow_checks());
    if let Some(in_flight) = checks.find(|check| cost > 0 && check.is_in_flight()) {
        return Err(no_permit(names.shown(in_flight.gate().name().unwrap_or_default())));
    }
    for planned in plan.checks() {
        let (gate, key) = (planned.gate(), planned.key());
        let stored = stored_quota::read(limiter, &inspector, &overrides, gate, key).await?;
        notes.extend(stored.blocked_for.map(|left| {
            let gate = names.shown(gate.name().unwrap_or_default());
            format!("{} is blocked at {gate} for {}", String::from_utf8_lossy(key), human(left))
        }));
        notes.extend(stored.mismatch);
    }
    inspector.read_overrides().await?;
    let mode = if cost == 0 { Mode::peek() } else { Mode::check() };
    let decision = limits.decide(check.request.domain(), &descriptors, &mode).await?.decision;
    let outcomes: Vec<Value> = decision.outcomes().iter().map(outcome_json).collect();
    let given = check.request.descriptor.iter().zip(&descriptors).zip(decision.outcomes());
    let rows = given.map(|((text, descriptor), outcome)| {
        let rule = outcome.rule().map_or("-", |rule| rule.path());
        let explained = rules.explain(check.request.domain(), descriptor);
        let why_not = explained.why_not().map(|why_not| format!("no rule matches: {why_not}").into());
        let result = why_not.map_or_else(|| outcome_text(outcome), |text| vec![text]);
        [vec![text.as_str().into(), rule.into()], result].concat()
    });
    let (tone, word) = allowed_word(decision.is_allowed());
    let mut lines = vec![vec![Text(tone, word.to_owned())]];
    lines.extend(table(&["descriptor", "rule", ""], rows.collect()));
    let json = json!({
        "allowed": decision.is_allowed(),
        "retry_after_us": decision.retry_after().as_micros() as u64,
        "outcomes": outcomes,
        "notes": notes,
    });
    warn(out, notes);
    out.print(&json, &lines)?;
    Ok(decision.is_allowed())
}

const fn allowed_word(is_allowed: bool) -> (Tone, &'static str) {
    if is_allowed { (Tone::Good, "allowed") } else { (Tone::Bad, "denied") }
}

/// Returns the text of a decision, for a key that was blocked at the time of the check for `blocked_for`.
fn decision_text(decision: &Decision, blocked_for: Option<Duration>) -> Vec<Text> {
    let (tone, word) = allowed_word(decision.is_allowed());
    let mut line = vec![Text(tone, word.to_owned())];
    if decision.source() == Source::Switch {
        line.push(Text(Tone::Warn, format!(": {} is switched, see `tidegate overrides`", decision.gate())));
        return line;
    }
    if decision.is_shadow() {
        line.push(Text(Tone::Warn, " (shadow mode: it would be denied)".to_owned()));
    }
    // The block may have ended since.
    let is_denied = !decision.is_allowed() || decision.is_shadow();
    if let Some(left) = blocked_for.filter(|_| is_denied) {
        let until = UNIX_EPOCH + Duration::from_micros(decision.server_now_us()) + left;
        let until = humantime::format_rfc3339_seconds(until);
        line.push(Text(Tone::Warn, format!(": the key is blocked for {}, until {until}", human(left))));
        return line;
    }
    if decision.source() == Source::Open {
        line.push(Text(Tone::Warn, ": not decided".to_owned()));
        return line;
    }
    let mut rest = format!(", {} of {} left", decision.remaining(), decision.limit());
    if !decision.delay().is_zero() {
        rest += &format!(", delay {}", human(decision.delay()));
    }
    if !decision.is_allowed() {
        rest += &format!(", retry after {}", human(decision.retry_after()));
    }
    if !decision.reset_after().is_zero() {
        rest += &format!(", resets in {}", human(decision.reset_after()));
    }
    line.push(rest.into());
    line
}

fn outcome_text(outcome: &RuleOutcome) -> Vec<Text> {
    match outcome.result() {
        // A table cell is a single `Text`.
        RuleResult::Decided(decision) => {
            let tone = allowed_word(decision.is_allowed()).0;
            vec![Text(tone, decision_text(decision, None).into_iter().map(|text| text.1).collect())]
        }
        RuleResult::NoRule => vec!["no rule matches".into()],
        RuleResult::Unlimited => vec!["unlimited".into()],
        RuleResult::Replaced => vec!["replaced by another rule".into()],
        RuleResult::NotChecked => vec!["not checked".into()],
        _ => vec!["not decided".into()],
    }
}

fn decision_json(decision: &Decision) -> Value {
    json!({
        "gate": decision.gate(),
        "allowed": decision.is_allowed(),
        "limit": decision.limit(),
        "remaining": decision.remaining(),
        "retry_after_us": decision.retry_after().as_micros() as u64,
        "reset_after_us": decision.reset_after().as_micros() as u64,
        "delay_us": decision.delay().as_micros() as u64,
        "shadow": decision.is_shadow(),
        "source": decision.source().as_str(),
    })
}

fn outcome_json(outcome: &RuleOutcome) -> Value {
    let kind = match outcome.result() {
        RuleResult::Decided(_) => "decided",
        RuleResult::NoRule => "no_rule",
        RuleResult::Unlimited => "unlimited",
        RuleResult::Replaced => "replaced",
        RuleResult::NotChecked => "not_checked",
        _ => "unanswered",
    };
    json!({
        "rule": outcome.rule().map(|rule| rule.path()),
        "outcome": kind,
        "decision": outcome.decision().map(decision_json),
    })
}

/// The keys and values of a descriptor.
pub(crate) type Entries = Vec<(String, String)>;

impl Request {
    pub(crate) fn domain(&self) -> &str {
        self.domain.as_deref().unwrap_or_default()
    }

    pub(crate) fn entries(&self) -> Result<Vec<Entries>, Failure> {
        Ok(self.descriptor.iter().map(|text| Descriptor::parse_entries(text)).collect::<Result<_, _>>()?)
    }

    pub(crate) fn descriptors<'a>(&'a self, entries: &'a [Entries]) -> Vec<Descriptor<'a>> {
        let descriptor = |entries: &'a Entries| {
            let descriptor = entries
                .iter()
                .fold(Descriptor::new(), |descriptor, (key, value)| descriptor.entry(key, value));
            match &self.tier {
                Some(tier) => descriptor.tier(tier),
                None => descriptor,
            }
        };
        entries.iter().map(descriptor).collect()
    }
}
