//! Random requests against a [`model`] of envoyproxy/ratelimit, with the settings of `tidegate serve --from-env`.

mod model;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tidegate_rules::{ChargedDenials, Loader};
use tidegate_server::RateLimitService;
use tidegate_server::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tidegate_server::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

use self::model::{Cause, Decided, Limit, Model, Rule, Status, UNITS};
use super::fixture::{descriptor, request, with_hits, with_limit};
use super::translation::as_json;
use crate::support::world::{START, World};

const DOCS: &str = include_str!("../../../../docs/operate/serve.md");
const KEYS: [&str; 2] = ["a", "b"];
const VALUES: [&str; 5] = ["x", "y", "xy", "x_y", ""];
const PATTERNS: [&str; 5] = ["*", "x*", "*y", "x*y", "*x*"];
const NAMES: [&str; 2] = ["one", "two"];

/// Makes rules and requests.
struct Chance(fastrand::Rng);

impl Chance {
    fn percent(&mut self, percent: u8) -> bool {
        self.0.u8(..100) < percent
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.0.usize(..choices.len())]
    }

    fn limit(&mut self) -> Limit {
        Limit {
            requests: if self.percent(6) { 0 } else { self.0.u32(1..8) },
            unit: (!self.percent(8)).then(|| self.0.usize(..UNITS.len())),
            name: self.percent(40).then(|| self.of(&NAMES)),
            replaces: Vec::new(),
        }
    }

    fn rules(&mut self, depth: u32, with: Odds) -> Vec<Rule> {
        let mut rules: Vec<Rule> = Vec::new();
        for _ in 0..self.0.u32(1..6) {
            let value = if self.percent(with.wildcards) { self.of(&PATTERNS) } else { self.of(&VALUES) };
            let key = self.of(&KEYS);
            if rules.iter().any(|rule| (rule.key, rule.value) == (key, value)) {
                continue;
            }
            let shadow = self.percent(with.shadow);
            rules.push(Rule {
                key,
                value,
                limit: self.percent(80).then(|| self.limit()),
                shadow,
                quota: !shadow && self.percent(with.quota),
                share: value.contains('*') && self.percent(30),
                detailed: self.percent(8),
                metadata: self.percent(30).then(|| self.0.u64(..3)),
                rules: if depth > 0 && self.percent(50) { self.rules(depth - 1, with) } else { Vec::new() },
            });
        }
        rules
    }

    fn request(&mut self, domain: &'static str, with: Odds) -> RateLimitRequest {
        let mut descriptors = Vec::new();
        for _ in 0..self.0.u32(1..5) {
            let entries: Vec<_> = (0..self.0.u32(1..3)).map(|_| (self.of(&KEYS), self.of(&VALUES))).collect();
            let mut one = descriptor(&entries);
            if self.percent(40) {
                one = with_hits(one, if self.percent(40) { 0 } else { self.0.u64(1..9) });
            }
            if self.percent(with.own_limits) {
                // The protocol has no week here.
                let unit = self.0.i32(1..7);
                one = with_limit(one, if self.percent(10) { 0 } else { self.0.u32(1..8) }, unit);
            }
            descriptors.push(one);
        }
        let hits_addend = if self.percent(70) { 0 } else { self.0.u32(1..9) };
        let domain = if self.percent(3) { "unknown" } else { domain };
        RateLimitRequest { domain: domain.to_owned(), hits_addend, ..request(descriptors) }
    }
}

/// How often rules and requests have something, in percent.
#[derive(Clone, Copy)]
struct Odds {
    wildcards: u8,
    shadow: u8,
    quota: u8,
    own_limits: u8,
}

/// Gives some rules the names of others to replace.
fn add_replaces(rules: &mut [Rule], names: &[&'static str], chance: &mut Chance) {
    for rule in rules {
        if let Some(limit) = &mut rule.limit {
            let others = names.iter().filter(|name| Some(**name) != limit.name).copied();
            limit.replaces = others.filter(|_| chance.percent(15)).collect();
        }
        add_replaces(&mut rule.rules, names, chance);
    }
}

fn names(rules: &[Rule]) -> Vec<&'static str> {
    let own = rules.iter().filter_map(|rule| rule.limit.as_ref()?.name);
    let mut all: Vec<_> = own.chain(rules.iter().flat_map(|rule| names(&rule.rules))).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Returns a response in the form of the model.
fn decided(response: &RateLimitResponse) -> Decided {
    let statuses = response.statuses.iter().map(|status| Status {
        is_over: status.code() == Code::OverLimit,
        limit: status.current_limit.as_ref().map(|limit| (limit.requests_per_unit, limit.unit)),
        remaining: status.limit_remaining,
        reset: status.duration_until_reset.as_ref().map(|reset| u64::try_from(reset.seconds).unwrap()),
    });
    let metadata = response.dynamic_metadata.as_ref().unwrap().fields.get("metadata");
    let metadata = metadata.map(|value| as_json(value.kind.as_ref().unwrap()));
    Decided {
        is_over: response.overall_code() == Code::OverLimit,
        statuses: statuses.collect(),
        metadata: metadata.map_or_else(Map::new, |value| value.as_object().unwrap().clone()),
    }
}

/// The result of many universes.
#[derive(Debug, Default)]
struct Compared {
    requests: usize,
    differences: BTreeMap<Cause, usize>,
}

impl Compared {
    /// Compares requests under random rules, each until the first difference. Returns a difference without a cause.
    async fn compare(
        &mut self,
        world: &World,
        chance: &mut Chance,
        change: impl Fn(RateLimitService) -> RateLimitService,
    ) -> Result<(), String> {
        let stops = chance.percent(40);
        let with = Odds {
            wildcards: chance.of(&[0, 10, 30]),
            shadow: if stops { chance.of(&[0, 0, 15]) } else { 15 },
            quota: if stops { 0 } else { chance.of(&[0, 30]) },
            own_limits: chance.of(&[0, 0, 10]),
        };
        let mut rules = chance.rules(1, with);
        let names = names(&rules);
        add_replaces(&mut rules, &names, chance);
        let shadow = chance.percent(5);
        let mut model = Model::new("d", rules, stops, shadow);
        let written: Vec<Value> = model.rules.iter().map(Rule::written).collect();
        let written = json!({ "domain": "d", "descriptors": written }).to_string();
        let loaded = Loader::new().charge_each(!stops).parse([("d.yaml", &*written)]).unwrap();
        let service = RateLimitService::new(loaded.bind(&world.limiter)).shadow(shadow);
        let service =
            service.charge_denied(ChargedDenials::All).peeks_pass_at_limit(true).request_metadata(true);
        let service = change(service);
        let (mut now, mut log) = (START.as_secs(), Vec::new());
        for _ in 0..60 {
            let request = chance.request("d", with);
            let (there, causes) = model.decide(&request, now);
            let mut here = decided(&service.decide(&request).await.unwrap());
            self.requests += 1;
            for (here, there) in here.statuses.iter_mut().zip(&there.statuses) {
                let is_unused =
                    here.limit.is_some_and(|(requests, _)| requests == here.remaining && requests > 0);
                match here.reset {
                    Some(0) if is_unused && there.reset.is_some() => {
                        *self.differences.entry(Cause::UnusedReset).or_default() += 1;
                        here.reset = there.reset;
                    }
                    // By the clock of this machine, which has no test clock.
                    Some(_) if here.limit.is_some_and(|(requests, _)| requests == 0) => {
                        here.reset = there.reset
                    }
                    _ => {}
                }
            }
            log.push(format!("at {now}: {request:?}"));
            if here != there {
                let Some(cause) = causes.first() else {
                    let log = log[log.len().saturating_sub(30)..].join("\n");
                    return Err(format!("{written}, stops: {stops}\n{log}\nhere  {here:?}\nthere {there:?}"));
                };
                *self.differences.entry(*cause).or_default() += 1;
                return Ok(());
            }
            let seconds = chance.of(&[0, 0, 0, 0, 0, 1, 7, 40]);
            now += seconds;
            world.advance(Duration::from_secs(seconds));
        }
        Ok(())
    }
}

#[tokio::test]
async fn random_requests_are_decided_as_by_envoyproxy_ratelimit_but_for_documented_causes() {
    let mut chance = Chance(fastrand::Rng::with_seed(35));
    for (of_memory, requests) in [(true, 20_000), (false, 1_000)] {
        let mut compared = Compared::default();
        while compared.requests < requests {
            let world = if of_memory { World::memory() } else { World::redis() };
            if let Err(difference) = compared.compare(&world, &mut chance, |service| service).await {
                panic!("{difference}");
            }
        }
        for cause in compared.differences.keys() {
            let row = format!("\n| {} |", cause.row());
            assert!(DOCS.contains(&row), "no row for {cause:?}: {row}");
        }
    }
}

#[tokio::test]
async fn comparison_finds_settings_that_decide_otherwise() {
    let without: [fn(RateLimitService) -> RateLimitService; 3] = [
        |service| service.charge_denied(ChargedDenials::None),
        |service| service.peeks_pass_at_limit(false),
        |service| service.shadow(true),
    ];
    for change in without {
        let mut chance = Chance(fastrand::Rng::with_seed(1));
        let mut compared = Compared::default();
        let mut is_found = false;
        while !is_found && compared.requests < 20_000 {
            is_found = compared.compare(&World::memory(), &mut chance, change).await.is_err();
        }
        assert!(is_found, "{compared:?}");
    }
}
