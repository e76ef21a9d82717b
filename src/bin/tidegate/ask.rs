//! `check` and `peek`.

use std::ffi::OsStr;

use serde_json::{Value, json};
use tidegate::internals::Inspector;
use tidegate::rules::{Descriptor, Outcome, Rules, Verdict};
use tidegate::{Decision, Limiter, Source};

use crate::args::{Ask, Request};
use crate::failure::Failure;
use crate::output::{Output, Text, Tone, table};
use crate::units::human;

/// Whether it passes.
pub(crate) async fn run(ask: &Ask, charges: bool, limiter: &Limiter, out: Output) -> Result<bool, Failure> {
    let cost = if charges { ask.cost } else { 0 };
    Inspector::new(limiter)?.read_orders().await?;
    match (&ask.key, &ask.gate) {
        (Some(key), Some(gate)) => of_gate(ask, gate, key, cost, limiter, out).await,
        _ => of_rules(ask, cost, limiter, out).await,
    }
}

async fn of_gate(
    ask: &Ask,
    gate: &str,
    key: &OsStr,
    cost: u64,
    limiter: &Limiter,
    out: Output,
) -> Result<bool, Failure> {
    let gate = limiter.try_gate(gate, ask.quota.required(gate)?)?;
    let key = key.as_encoded_bytes();
    let decision = gate.check_cost(key, cost).await?;
    let mut said = told(&decision);
    said["redis_key"] = gate.redis_key(key)?.into();
    out.say(&said, &[words(&decision)])?;
    Ok(decision.is_allowed())
}

async fn of_rules(ask: &Ask, cost: u64, limiter: &Limiter, out: Output) -> Result<bool, Failure> {
    let Some(path) = &ask.quota.rules else {
        return Err(Failure::usage("say where the rules stand: --rules PATH"));
    };
    let limits = Rules::load(path).map_err(Failure::Mistakes)?.bind(limiter);
    let entries = ask.request.entries()?;
    let descriptors: Vec<Descriptor<'_>> =
        ask.request.descriptors(&entries).into_iter().map(|descriptor| descriptor.hits(cost)).collect();
    let ruling = limits.check(ask.request.domain(), &descriptors).await?;
    let told: Vec<Value> = ruling.verdicts().iter().map(told_of_rule).collect();
    let rows = ask.request.descriptor.iter().zip(ruling.verdicts()).map(|(descriptor, verdict)| {
        let rule = verdict.rule().map_or("-", |rule| rule.path());
        [vec![descriptor.as_str().into(), rule.into()], words_of_rule(verdict)].concat()
    });
    let (tone, word) = word(ruling.is_allowed());
    let mut lines = vec![vec![Text(tone, word.to_owned())]];
    lines.extend(table(&["descriptor", "rule", ""], rows.collect()));
    let retry_after_us = ruling.retry_after().as_micros() as u64;
    let json = json!({ "allowed": ruling.is_allowed(), "retry_after_us": retry_after_us, "verdicts": told });
    out.say(&json, &lines)?;
    Ok(ruling.is_allowed())
}

const fn word(is_allowed: bool) -> (Tone, &'static str) {
    if is_allowed { (Tone::Good, "allowed") } else { (Tone::Bad, "denied") }
}

fn words(decision: &Decision) -> Vec<Text> {
    let (tone, word) = word(decision.is_allowed());
    let mut line = vec![Text(tone, word.to_owned())];
    if decision.source() == Source::Switch {
        line.push(Text(Tone::Warn, format!(": {} is switched, see `tidegate orders`", decision.gate())));
        return line;
    }
    if decision.is_shadow() {
        line.push(Text(Tone::Warn, " (only watched: it would be denied)".to_owned()));
    }
    let mut rest = format!(", {} of {} left", decision.remaining(), decision.limit());
    if !decision.delay().is_zero() {
        rest += &format!(", go on after {}", human(decision.delay()));
    }
    if !decision.is_allowed() {
        rest += &format!(", retry after {}", human(decision.retry_after()));
    }
    if !decision.reset_after().is_zero() {
        rest += &format!(", as new in {}", human(decision.reset_after()));
    }
    line.push(rest.into());
    line
}

fn words_of_rule(verdict: &Verdict) -> Vec<Text> {
    match verdict.outcome() {
        // A cell of a table is one piece.
        Outcome::Decided(decision) => {
            let tone = word(decision.is_allowed()).0;
            vec![Text(tone, words(decision).into_iter().map(|text| text.1).collect())]
        }
        Outcome::NoRule => vec!["no rule meets it".into()],
        Outcome::Unlimited => vec!["unlimited".into()],
        Outcome::Replaced => vec!["replaced by another rule".into()],
        Outcome::NotAsked => vec!["not asked".into()],
        _ => vec!["no answer".into()],
    }
}

fn told(decision: &Decision) -> Value {
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

fn told_of_rule(verdict: &Verdict) -> Value {
    let outcome = match verdict.outcome() {
        Outcome::Decided(_) => "decided",
        Outcome::NoRule => "no_rule",
        Outcome::Unlimited => "unlimited",
        Outcome::Replaced => "replaced",
        Outcome::NotAsked => "not_asked",
        _ => "unanswered",
    };
    json!({
        "rule": verdict.rule().map(|rule| rule.path()),
        "outcome": outcome,
        "decision": verdict.decision().map(told),
    })
}

/// A descriptor's keys and values.
pub(crate) type Entries = Vec<(String, String)>;

impl Request {
    pub(crate) fn domain(&self) -> &str {
        self.domain.as_deref().unwrap_or_default()
    }

    pub(crate) fn entries(&self) -> Result<Vec<Entries>, Failure> {
        self.descriptor.iter().map(|text| entries(text)).collect()
    }

    pub(crate) fn descriptors<'a>(&'a self, entries: &'a [Entries]) -> Vec<Descriptor<'a>> {
        let descriptor = |entries: &'a Entries| {
            let descriptor = entries.iter().fold(Descriptor::new(), |it, (key, value)| it.entry(key, value));
            match &self.tier {
                Some(tier) => descriptor.tier(tier),
                None => descriptor,
            }
        };
        entries.iter().map(descriptor).collect()
    }
}

/// `a=b,c=d`; what follows a `\` is meant as it is.
fn entries(text: &str) -> Result<Entries, Failure> {
    let mut parts = vec![String::new()];
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        let last = parts.len() - 1;
        match letter {
            ',' => parts.push(String::new()),
            '\\' => parts[last].extend(letters.next()),
            _ => parts[last].push(letter),
        }
    }
    let entry = |part: String| match part.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(Failure::usage(format!("`{part}` is no entry of a descriptor: write key=value,key=value"))),
    };
    parts.into_iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_entries_with_commas_between() {
        let read = |text: &str| entries(text).ok();
        let pairs = |pairs: &[(&str, &str)]| {
            Some(
                pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<Vec<_>>(),
            )
        };
        assert_eq!(read("a=b"), pairs(&[("a", "b")]));
        assert_eq!(read("a=b,c="), pairs(&[("a", "b"), ("c", "")]));
        assert_eq!(read(r"a=b\,c=d=e\\"), pairs(&[("a", r"b,c=d=e\")]));
        for text in ["", "a", "=b", "a=b,", ","] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
