//! Each pair of capabilities goes together or is a configuration error, as the table of the guide says.

use std::sync::Arc;
use std::time::Duration;

use tidegate::quota::Calendar;
use tidegate::{
    Acquired, Adaptive, Ban, Builder, Check, Error, Gate, Lease, Limiter, OnFailure, Quota, regions,
};
use tidegate_rules::{ChargedDenials, Descriptor, Mode, Rules, RulesLimiter};
use tidegate_testkit::{Cluster, Server};

use crate::support::fixture::{PATIENCE, namespace, soon};

/// The page with the table.
const PAGE: &str = include_str!("../../../../docs/guide/gates.md");

const LIMIT: u64 = 5;

/// The namespace of the limiters in several regions, which is that of all of them.
const REGIONAL: &str = "what-goes-with-what";

/// Two capabilities that the same check uses.
#[derive(Clone, Copy)]
struct Pair<'a>(&'a str, &'a str, &'a Servers);

struct Servers {
    one: Arc<Server>,
    cluster: Arc<Cluster>,
    /// The Redis of another region, and a limiter there.
    peer: (Arc<Server>, Limiter),
}

/// What keeps the units of a check in use.
type Held = Box<dyn Send>;

impl Pair<'_> {
    fn has(self, capability: &str) -> bool {
        self.0 == capability || self.1 == capability
    }

    fn is_in_flight(self) -> bool {
        self.has("in flight") || self.has("adaptive")
    }

    /// Charges the whole limit, and one unit more. Returns whether each was admitted.
    async fn decide_twice(self) -> Result<[bool; 2], String> {
        let limiter = self.limiter().map_err(|error| error.to_string())?;
        self.wait_for_regions(&limiter).await;
        if self.has("rules") || self.has("denied charged") {
            let limits = self.rules()?.bind(&limiter);
            let (first, held) = self.decide_by_rules(&limits, LIMIT).await?;
            let (second, _) = self.decide_by_rules(&limits, 1).await?;
            drop(held);
            return Ok([first, second]);
        }
        let decide = |cost| self.decide(&limiter, self.checks(&limiter, cost));
        let (first, held) = decide(LIMIT).await.map_err(|error| error.to_string())?;
        let (second, _) = decide(1).await.map_err(|error| error.to_string())?;
        drop(held);
        Ok([first, second])
    }

    fn limiter(self) -> Result<Limiter, Error> {
        let store = |builder: Builder| match () {
            () if self.has("in memory") => builder.in_memory(),
            () if self.has("cluster") => builder.cluster(self.2.cluster.urls()),
            () => builder.url(self.2.one.url()),
        };
        let namespace = if self.is_in_regions() { REGIONAL.to_owned() } else { namespace() };
        let builder = Limiter::builder().namespace(&namespace).deadline(PATIENCE);
        let builder = match self.is_in_regions() {
            true => builder.region("eu").peer("us", self.2.peer.0.url()),
            false => builder,
        };
        store(builder).on_failure(OnFailure::Error).build()
    }

    /// In memory, there is one region.
    fn is_in_regions(self) -> bool {
        self.has("regions") && !self.has("in memory")
    }

    /// Waits until the other region is heard of. It is no cluster, so a cluster hears nothing of it.
    async fn wait_for_regions(self, limiter: &Limiter) {
        if self.has("cluster") {
            return;
        }
        let is_heard = || limiter.regions().is_none_or(|status| !status.peers[0].is_cut_off);
        soon("the peer is heard of", async || is_heard()).await;
    }

    /// Returns a key of this pair: all pairs of regions share a namespace.
    fn key(self) -> String {
        format!("{} {}", self.0, self.1)
    }

    fn gate(self, limiter: &Limiter) -> Gate {
        let quota = match () {
            () if self.is_in_flight() => Quota::in_flight(LIMIT),
            () if self.has("calendar") => Quota::calendar_window(LIMIT, Calendar::YEAR),
            () => self.a_decade(),
        };
        let mut gate = self.replicated(limiter.gate("api", quota)).shadow(self.has("shadow"));
        if self.has("lease") {
            gate = gate.leased(Lease::default());
        }
        if self.has("ban") {
            let (within, lasts) = (Duration::from_secs(600), Duration::from_secs(3_600));
            gate = gate.ban(Ban::after(20, within).lasting(lasts));
        }
        if self.has("reservation") {
            gate = gate.holds();
        }
        if self.has("adaptive") {
            gate = gate.adaptive(Adaptive::new().min(LIMIT));
        }
        gate.charge_used(self.has("used charged"))
    }

    fn checks(self, limiter: &Limiter, cost: u64) -> Vec<Check> {
        let mut checks = vec![self.gate(limiter).key(self.key()).cost(cost)];
        if self.has("several gates") {
            checks.push(self.replicated(limiter.gate("other", self.a_decade())).key(self.key()));
        }
        checks
    }

    fn replicated(self, gate: Gate) -> Gate {
        let mode = regions::Mode::gossip().when_cut_off(regions::WhenCutOff::Own);
        if self.has("regions") { gate.replicated(mode) } else { gate }
    }

    fn a_decade(self) -> Quota {
        let quota = Quota::fixed_window(LIMIT, Duration::from_secs(10 * 365 * 86_400));
        if self.has("regions") { quota.aligned_to_clock() } else { quota }
    }

    async fn decide(self, limiter: &Limiter, checks: Vec<Check>) -> Result<(bool, Held), Error> {
        if self.has("reservation") {
            let costs: Vec<_> = checks.iter().map(Check::units).collect();
            let (decision, token) = limiter.reserve(checks).await?.into_parts();
            if let Some(token) = token {
                limiter.commit(&token, costs).await?;
            }
            return Ok((decision.is_allowed(), Box::new(())));
        }
        if self.is_in_flight() {
            return Ok(match limiter.acquire_all(checks).await? {
                Acquired::Admitted(permits, _) => (true, Box::new(permits)),
                _ => (false, Box::new(())),
            });
        }
        Ok((limiter.check_all(checks).await?.is_allowed(), Box::new(())))
    }

    fn rules(self) -> Result<Rules, String> {
        let limit = match () {
            () if self.is_in_flight() => "in_flight: 5",
            () if self.has("calendar") => "every: year, requests_per_unit: 5",
            () => "unit: year, requests_per_unit: 5",
        };
        let field = |capability, field| if self.has(capability) { field } else { "" };
        let lease = field("lease", ", lease: {}");
        let ban = field("ban", ", ban: { after: 20, within: 10m, for: 1h }");
        let adaptive = field("adaptive", ", adaptive: {}");
        let shadow = field("shadow", ", shadow_mode: true");
        let used = field("used charged", ", charge_used: true");
        let regions = field("regions", ", regions: gossip");
        let text = format!(
            "domain: d
descriptors:
  - {{ key: api, rate_limit: {{ {limit}{lease}{ban}{adaptive}{regions} }}{shadow}{used} }}
  - {{ key: other, rate_limit: {{ unit: year, requests_per_unit: 5{regions} }} }}
"
        );
        Rules::parse("d.yaml", &text).map_err(|errors| errors.to_string())
    }

    async fn decide_by_rules(self, limits: &RulesLimiter, hits: u64) -> Result<(bool, Held), String> {
        let key = self.key();
        let mut descriptors = vec![Descriptor::from([("api", &*key)]).hits(hits)];
        if self.has("several gates") {
            descriptors.push(Descriptor::from([("other", &*key)]));
        }
        let text = |error: Error| error.to_string();
        if self.has("reservation") {
            let plan = limits.plan("d", &descriptors);
            let checks = plan.checks().iter().map(|check| check.check()).collect();
            return self.decide(limits.limiter(), checks).await.map_err(text);
        }
        if self.is_in_flight() {
            return Ok(match limits.acquire("d", &descriptors).await.map_err(text)? {
                Acquired::Admitted(permits, _) => (true, Box::new(permits)),
                _ => (false, Box::new(())),
            });
        }
        let is_charged = self.has("denied charged");
        let charged = if is_charged { ChargedDenials::All } else { ChargedDenials::None };
        let mode = Mode::check().charge_denied(charged);
        let decision = limits.decide("d", &descriptors, &mode).await.map_err(text)?.decision;
        Ok((decision.is_allowed(), Box::new(())))
    }
}

/// The table: its capabilities, and per row the cells up to the diagonal.
fn table() -> Vec<(&'static str, Vec<&'static str>)> {
    let (_, section) = PAGE.split_once("\n## What goes with what\n").unwrap();
    let rows =
        section.lines().skip_while(|line| !line.starts_with("| |")).take_while(|line| !line.is_empty());
    let cells = |row: &'static str| row.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>();
    let rows: Vec<_> = rows.map(cells).collect();
    let table: Vec<_> = rows[2..].iter().map(|row| (row[0], row[1..].to_vec())).collect();
    let columns: Vec<_> = table[..table.len() - 1].iter().map(|(capability, _)| *capability).collect();
    assert_eq!(rows[0][1..], columns, "the columns are the rows but the last");
    table
}

#[tokio::test]
async fn pairs_that_the_guide_excludes_are_config_errors_and_all_others_decide() {
    let (one, cluster) = (tidegate_testkit::shared(), tidegate_testkit::shared_cluster());
    let us = Arc::new(Server::process(&[]).unwrap());
    let there = Limiter::builder().url(us.url()).namespace(REGIONAL).region("us").peer("eu", one.url());
    let servers = Servers { one, cluster, peer: (us, there.build().unwrap()) };
    let table = table();
    assert_eq!(table.len(), 14);
    for (row, (one, cells)) in table.iter().enumerate() {
        for ((other, _), cell) in table[..row].iter().zip(cells) {
            let pair = Pair(one, other, &servers);
            let decided = pair.decide_twice().await;
            match *cell {
                "yes" => {
                    assert_eq!(decided, Ok([true, pair.has("shadow")]), "{one} with {other}");
                }
                // A quota has one algorithm, and a limiter one store: both cannot be written.
                "-" => {}
                _ if cell.starts_with("no ") => {
                    let Err(reason) = decided else { panic!("{one} goes with {other}: {decided:?}") };
                    assert!(!reason.contains("unavailable"), "{one} with {other}: {reason}");
                }
                cell => panic!("{one} with {other}: {cell:?} is no cell of this table"),
            }
        }
        assert!(cells[row.min(cells.len())..].iter().all(|cell| cell.is_empty()), "{one}");
    }
}
