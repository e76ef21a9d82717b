//! The first thing that an operator sees: whether the fleet denies, and why.

use tidegate::{Override, Switch};

use super::{Readings, Tone};
use crate::pages::catalog::{Catalog, Origin, switch_of};
use crate::pages::display;
use crate::pages::hour::{GateHour, Hour};

/// A gate that denied in the last minute.
#[derive(Debug)]
pub(in crate::pages) struct Denying {
    pub(in crate::pages) name: String,
    pub(in crate::pages) denied_per_second: String,
    pub(in crate::pages) share: String,
    pub(in crate::pages) why: String,
    pub(in crate::pages) origin: Option<Origin>,
    is_severe: bool,
}

/// The verdict in a few words.
pub(super) struct Headline {
    pub(super) verdict: Tone,
    pub(super) headline: String,
    pub(super) note: Option<String>,
}

impl Denying {
    /// Returns all gates that denied in the last minute, those with the most denials first.
    pub(super) fn all(hour: &Hour, overrides: Option<&[Override]>, catalog: &Catalog) -> Vec<Self> {
        let denying = hour.denying().into_iter();
        denying.map(|(name, gate)| Self::new(name, gate, overrides, catalog)).collect()
    }

    fn new(name: &str, gate: &GateHour, overrides: Option<&[Override]>, catalog: &Catalog) -> Self {
        let facts = catalog.get(name);
        let is_most = gate.now.denied.saturating_mul(2) >= gate.now.decisions();
        Self {
            name: name.to_owned(),
            denied_per_second: display::per_second(Hour::per_second_now(gate.now.denied)),
            share: display::share(gate.now.denied, gate.now.decisions()),
            why: why(name, gate, overrides, catalog),
            origin: facts.map(|facts| facts.origin.clone()),
            is_severe: is_most || is_closed(overrides, name),
        }
    }
}

fn is_closed(overrides: Option<&[Override]>, gate: &str) -> bool {
    overrides.is_some_and(|overrides| switch_of(overrides, gate) == Some(Switch::Closed))
}

/// Returns why a gate denies.
fn why(name: &str, gate: &GateHour, overrides: Option<&[Override]>, catalog: &Catalog) -> String {
    let of_source = |source: &str| gate.sources_now.get(source).copied().unwrap_or(0);
    if is_closed(overrides, name) {
        return "an operator has switched the gate closed".to_owned();
    }
    let facts = catalog.get(name);
    if facts.is_some_and(|facts| facts.denies_all) {
        return "its rule denies every request".to_owned();
    }
    if of_source("closed").saturating_mul(2) > gate.now.denied {
        return "Redis does not decide, and the failure policy is `closed`".to_owned();
    }
    if overrides.is_none() {
        return "the reason is not known: Redis does not answer".to_owned();
    }
    let quota = facts.map_or_else(
        || "keys over their quota, which a service defines in its code".to_owned(),
        |facts| format!("keys over {}", facts.quota),
    );
    match of_source("local") {
        0 => quota,
        _ => format!("{quota}; Redis is away, so each instance decides within its share"),
    }
}

impl Headline {
    pub(super) fn new(readings: &Readings<'_>, hour: &Hour, denying: &[Denying]) -> Self {
        let headline = |verdict, headline: String, note| Self { verdict, headline, note };
        if let Err(why) = readings.hour {
            return headline(Tone::Warn, "No figures of the fleet".to_owned(), Some(why.to_owned()));
        }
        let stale = hour.stale.as_ref().map(|stale| {
            format!(
                "These figures are not current, because Redis did not answer this process: {}",
                stale.error
            )
        });
        let open = hour.instances.iter().filter(|instance| instance.breaker_open).count();
        if open > 0 {
            let all = display::counted(hour.instances.len(), "instance");
            let text = format!("Redis does not decide for {open} of {all}");
            let note =
                "Their circuit breakers are open, and the failure policy decides. See Health.".to_owned();
            return headline(Tone::Bad, text, Some(stale.unwrap_or(note)));
        }
        if stale.is_some() {
            return headline(Tone::Bad, "Redis does not answer this process".to_owned(), stale);
        }
        if !denying.is_empty() {
            let verdict = if denying.iter().any(|gate| gate.is_severe) { Tone::Bad } else { Tone::Warn };
            let verb = if denying.len() == 1 { "denies" } else { "deny" };
            let text = format!("{} {verb} requests", display::counted(denying.len(), "gate"));
            return headline(verdict, text, None);
        }
        let switched = switches(readings.overrides);
        let note = (switched > 0).then(|| format!("{} switched by operators.", count_with_verb(switched)));
        match (hour.gates.is_empty(), switched) {
            (true, _) => headline(Tone::Plain, "No decisions in the last hour".to_owned(), note),
            (_, 0) => headline(Tone::Good, "No gate denies requests".to_owned(), None),
            _ => headline(Tone::Warn, "No gate denies requests".to_owned(), note),
        }
    }
}

/// Returns the number of gates that operators have switched.
pub(super) fn switches(overrides: Option<&[Override]>) -> usize {
    let overrides = overrides.unwrap_or_default();
    overrides.iter().filter(|entry| matches!(entry, Override::Switch { .. })).count()
}

fn count_with_verb(gates: usize) -> String {
    format!("{} {}", display::counted(gates, "gate"), if gates == 1 { "is" } else { "are" })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate::Limiter;
    use tidegate::admin::{FigureBucket, GateFigures, Instance};
    use tidegate_rules::Rules;

    use super::*;
    use crate::pages::hour::{SETTLED, Stale};

    const NOW: u64 = 1_800_000_010;
    const RULES: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: minute, requests_per_unit: 3 }
  - key: nothing
    rate_limit: { unit: minute, requests_per_unit: 0 }
";

    fn hour(gate: &str, allowed: u64, denied: u64, source: &str) -> Hour {
        let by_source = vec![(source.to_owned(), allowed + denied)];
        let gate =
            GateFigures { gate: gate.to_owned(), allowed, denied, by_source, ..GateFigures::default() };
        let bucket = FigureBucket { start_unix_s: NOW - 20, gates: vec![gate], ..FigureBucket::default() };
        Hour::new([bucket].iter(), vec![Instance::default()], Duration::from_secs(5), NOW - SETTLED.as_secs())
    }

    fn verdict(hour: Result<&Hour, &str>) -> (Tone, String, Vec<String>) {
        let catalog = Catalog::new(&Rules::parse("d.yaml", RULES).unwrap().bind(&Limiter::in_memory()));
        let denying = hour.map_or_else(|_| Vec::new(), |hour| Denying::all(hour, Some(&[]), &catalog));
        let readings = Readings {
            is_in_memory: false,
            hour,
            overrides: Some(&[]),
            catalog: &catalog,
            has_answered: true,
            redis: Err(String::new()),
        };
        let empty = Hour::new([].iter(), Vec::new(), Duration::from_secs(5), NOW - SETTLED.as_secs());
        let headline = Headline::new(&readings, hour.unwrap_or(&empty), &denying);
        (headline.verdict, headline.headline, denying.into_iter().map(|gate| gate.why).collect())
    }

    #[test]
    fn verdict_names_the_gates_that_deny_and_the_reason() {
        for (gate, allowed, denied, source, tone, why) in [
            ("d.user", 90, 10, "redis", Tone::Warn, "keys over 3/min"),
            ("d.user", 10, 90, "redis", Tone::Bad, "keys over 3/min"),
            ("d.nothing", 0, 9, "rule", Tone::Bad, "its rule denies every request"),
            (
                "d.user",
                0,
                9,
                "closed",
                Tone::Bad,
                "Redis does not decide, and the failure policy is `closed`",
            ),
            ("code", 9, 1, "redis", Tone::Warn, "keys over their quota, which a service defines in its code"),
        ] {
            let expected = (tone, "1 gate denies requests".to_owned(), vec![why.to_owned()]);
            assert_eq!(verdict(Ok(&hour(gate, allowed, denied, source))), expected, "{gate} {source}");
        }
    }

    #[test]
    fn verdict_is_good_only_with_current_figures_without_denials() {
        assert_eq!(verdict(Ok(&hour("d.user", 9, 0, "redis"))).0, Tone::Good);
        assert_eq!(verdict(Err("no Redis")).0, Tone::Warn);
        let stale = Hour {
            stale: Some(Stale { error: "timed out".to_owned(), read_unix_s: NOW }),
            ..hour("d.user", 9, 0, "redis")
        };
        assert_eq!(verdict(Ok(&stale)).0, Tone::Bad);
        let open = Instance { breaker_open: true, ..Instance::default() };
        let open = Hour { instances: vec![open], ..hour("d.user", 9, 0, "redis") };
        let (tone, headline, _) = verdict(Ok(&open));
        assert_eq!((tone, &*headline), (Tone::Bad, "Redis does not decide for 1 of 1 instance"));
    }
    #[test]
    fn reason_is_not_guessed_without_the_overrides() {
        let catalog = Catalog::new(&Rules::parse("d.yaml", RULES).unwrap().bind(&Limiter::in_memory()));
        let why = |gate| Denying::all(&hour(gate, 1, 9, "redis"), None, &catalog).remove(0).why;
        assert_eq!(why("d.user"), "the reason is not known: Redis does not answer");
        assert_eq!(why("d.nothing"), "its rule denies every request");
    }
}
