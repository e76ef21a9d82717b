//! A reload keeps the gates, and so the leases, of unchanged rules.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex};

use tidegate::{Builder, Decision, Event, Limiter, ManualClock, Observer, OnFailure, Source};
use tidegate_rules::{Descriptor, Loader, ReloadingRules};

use super::loading::Folder;
use super::reloading::Reloads;
use crate::support::fixture::{builder_as_is, closed_port, soon};

const LEASED: &str = "rate_limit: { unit: day, requests_per_unit: 100, lease: { max_units: 10 } }";

/// Units of leases by gate name: taken, and returned.
#[derive(Clone, Default)]
struct LeaseUnits(Arc<Mutex<BTreeMap<String, (u64, u64)>>>);

impl Observer for LeaseUnits {
    fn on(&self, event: &Event<'_>) {
        match *event {
            Event::Leased { gate, units } => {
                self.0.lock().unwrap().entry(gate.to_owned()).or_default().0 += units;
            }
            Event::Returned { gate, units } => {
                self.0.lock().unwrap().entry(gate.to_owned()).or_default().1 += units;
            }
            _ => {}
        }
    }
}

/// The rules of a folder.
struct Watched {
    folder: Folder,
    rules: ReloadingRules,
    reloads: Reloads,
    units: LeaseUnits,
}

impl Watched {
    fn new(name: &str, rules: &str, limiter: Builder) -> Self {
        let folder = Folder::new(&format!("gates-{name}"));
        folder.write("a.yaml", rules);
        let (reloads, units) = (Reloads::default(), LeaseUnits::default());
        let limiter = limiter.observer((reloads.clone(), units.clone())).build().unwrap();
        let rules = Loader::new().watch(&folder.0, &limiter).unwrap();
        Self { folder, rules, reloads, units }
    }

    /// Returns rules in memory. Their leases do not expire, because the clock does not move.
    fn in_memory(name: &str, rules: &str) -> Self {
        Self::new(name, rules, Limiter::builder().in_memory().manual_clock(ManualClock::new()))
    }

    /// Renames a file in the folder, and waits until the rules are reloaded.
    async fn rename(&self, from: &str, to: &str) {
        let reloads = self.reloads.recorded().len();
        fs::rename(self.folder.0.join(from), self.folder.0.join(to)).unwrap();
        self.reloads.wait_for(reloads + 1).await;
        let last = self.reloads.recorded().pop().unwrap();
        assert!(last.is_ok(), "{last:?}");
    }

    async fn reload(&self, rules: &str) {
        self.folder.write("new", rules);
        self.rename("new", "a.yaml").await;
    }

    async fn check(&self, descriptor: &Descriptor<'_>) -> Decision {
        let decision = self.rules.limits().check("d", std::slice::from_ref(descriptor)).await.unwrap();
        decision.outcomes()[0].decision().unwrap().clone()
    }

    /// Starts a lease, which takes four checks. Its first block has two units.
    async fn start_lease(&self, gate: &str, descriptor: &Descriptor<'_>) {
        let taken = self.units(gate).0;
        for _ in 0..4 {
            assert_eq!(self.check(descriptor).await.source(), Source::Memory);
        }
        soon("a lease", async || self.units(gate).0 == taken + 2).await;
    }

    fn units(&self, gate: &str) -> (u64, u64) {
        self.units.0.lock().unwrap().get(gate).copied().unwrap_or_default()
    }
}

/// Returns a file with the domain `d` and a rule for each key, with these fields.
fn file(rules: &[(&str, &str)]) -> String {
    let rules = rules.iter().map(|(key, fields)| format!("  - {{ key: {key}, {fields} }}\n"));
    format!("domain: d\ndescriptors:\n{}", rules.collect::<String>())
}

fn descriptor(key: &str) -> Descriptor<'_> {
    Descriptor::from([(key, "v")])
}

#[tokio::test]
async fn unchanged_rule_keeps_its_leases_when_another_rule_changes() {
    let other = LEASED.replace("100", "200");
    let watched = Watched::in_memory("other", &file(&[("k", LEASED), ("other", LEASED)]));
    watched.start_lease("d.k", &descriptor("k")).await;
    watched.reload(&file(&[("k", LEASED), ("other", &other)])).await;
    assert_eq!(watched.units("d.k"), (2, 0));
    assert_eq!(watched.check(&descriptor("k")).await.source(), Source::Lease);
    assert_eq!(watched.check(&descriptor("other")).await.limit(), 200);
}

#[tokio::test]
async fn ten_reloads_without_a_changed_rule_return_no_units() {
    let rules = file(&[("k", LEASED)]);
    let watched = Watched::in_memory("ten", &rules);
    watched.start_lease("d.k", &descriptor("k")).await;
    for version in 0..10 {
        watched.reload(&format!("{rules}# version {version}\n")).await;
    }
    assert_eq!(watched.check(&descriptor("k")).await.source(), Source::Lease);
    assert_eq!(watched.units("d.k").1, 0);
}

#[tokio::test]
async fn rule_that_moves_in_its_file_or_to_another_file_keeps_its_leases() {
    let watched = Watched::in_memory("moved", &file(&[("k", LEASED), ("other", LEASED)]));
    watched.folder.write("new", file(&[("b", LEASED)]).replace("domain: d", "domain: e"));
    watched.rename("new", "b.yaml").await;
    watched.start_lease("d.k", &descriptor("k")).await;
    watched.reload(&file(&[("new", LEASED), ("other", LEASED), ("k", LEASED)])).await;
    watched.rename("a.yaml", "c.yaml").await;
    let limits = watched.rules.limits();
    let (file, line) = limits.rules().find("d", &descriptor("k")).unwrap().origin();
    assert!(file.ends_with("c.yaml") && line == 5, "{file}:{line}");
    assert_eq!(watched.check(&descriptor("k")).await.source(), Source::Lease);
    assert_eq!(watched.units("d.k").1, 0);
}

#[tokio::test]
async fn leases_of_a_removed_rule_are_returned() {
    let watched = Watched::in_memory("removed", &file(&[("removed", LEASED), ("k", LEASED)]));
    for (gate, key) in [("d.removed", "removed"), ("d.k", "k")] {
        watched.start_lease(gate, &descriptor(key)).await;
    }
    watched.reload(&file(&[("k", LEASED)])).await;
    soon("all units are returned", async || watched.units("d.removed") == (2, 2)).await;
    assert_eq!(watched.check(&descriptor("k")).await.source(), Source::Lease);
    assert_eq!(watched.units("d.k").1, 0);
}

#[tokio::test]
async fn changed_rule_gets_a_new_gate_with_the_new_settings() {
    let insert = |field: &str| LEASED.replace("lease:", &format!("{field}, lease:"));
    // For each change: the limit, the units left after one check, the units that the new gate leases first,
    // and whether a denial is only reported. A rule in shadow mode takes no leases.
    for (change, fields, expected) in [
        ("limit", LEASED.replace("100", "200"), (200, 195, 2, false)),
        ("algorithm", insert("algorithm: token_bucket"), (100, 99, 2, false)),
        ("lease", LEASED.replace("max_units: 10", "max_units: 1"), (100, 95, 1, false)),
        ("shadow", format!("shadow_mode: true, {LEASED}"), (100, 95, 0, true)),
        ("failure-policy", insert("on_failure: closed"), (100, 95, 2, false)),
    ] {
        let watched = Watched::in_memory(change, &file(&[("k", LEASED)]));
        let descriptor = descriptor("k");
        watched.start_lease("d.k", &descriptor).await;
        watched.reload(&file(&[("k", &fields)])).await;
        soon("the units of the previous gate are returned", async || watched.units("d.k") == (2, 2)).await;
        let first = watched.check(&descriptor).await;
        assert_eq!(first.source(), Source::Memory, "{change}");
        for _ in 0..3 {
            assert_eq!(watched.check(&descriptor).await.source(), Source::Memory, "{change}");
        }
        let (limit, remaining, block, is_shadow) = expected;
        soon("the new gate has its lease", async || watched.units("d.k") == (2 + block, 2)).await;
        let denied = watched.check(&descriptor.hits(limit)).await;
        let actual = (first.limit(), first.remaining(), denied.is_shadow());
        assert_eq!(actual, (limit, remaining, is_shadow), "{change}");
    }
}

#[tokio::test]
async fn changed_failure_policy_takes_effect() {
    let fields = |policy: &str| format!("rate_limit: {{ unit: day, requests_per_unit: 100{policy} }}");
    let limiter = builder_as_is(&format!("redis://127.0.0.1:{}", closed_port())).on_failure(OnFailure::Open);
    let watched = Watched::new("policy", &file(&[("k", &fields(""))]), limiter);
    assert_eq!(watched.check(&descriptor("k")).await.source(), Source::Open);
    for (policy, source) in [(", on_failure: closed", Source::Closed), ("", Source::Open)] {
        watched.reload(&file(&[("k", &fields(policy))])).await;
        assert_eq!(watched.check(&descriptor("k")).await.source(), source);
    }
}

/// All tiers of a rule share its gate name.
#[tokio::test]
async fn unchanged_tier_keeps_its_leases_when_the_rest_of_its_rule_changes() {
    let fields = |limit: u64, tiers: &str| {
        format!("rate_limit: {{ unit: day, requests_per_unit: {limit}, lease: {{}}, tiers: {{ {tiers} }} }}")
    };
    let tiers = "free: { requests_per_unit: 100 }, pro: { requests_per_unit: 300 }";
    let watched = Watched::in_memory("tiers", &file(&[("k", &fields(100, tiers))]));
    let [none, free, pro] = ["none", "free", "pro"].map(|tier| descriptor("k").tier(tier));
    for descriptor in [&none, &free, &pro] {
        watched.start_lease("d.k", descriptor).await;
    }
    let tiers =
        "new: { requests_per_unit: 300 }, pro: { requests_per_unit: 300 }, free: { requests_per_unit: 100 }";
    watched.reload(&file(&[("k", &fields(200, tiers))])).await;
    soon("only the units of the changed limit are returned", async || watched.units("d.k") == (6, 2)).await;
    for (descriptor, limit) in [(free, 100), (pro, 300)] {
        let decision = watched.check(&descriptor).await;
        assert_eq!((decision.source(), decision.limit()), (Source::Lease, limit));
    }
    assert_eq!(watched.check(&none).await.limit(), 200);
    assert_eq!(watched.units("d.k").1, 2);
}
