//! The demo: example rules, and the traffic that fills the console. All of it is in the memory of this process.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate::{Acquired, Error, Permits, Quota};
use tidegate_rules::{ConfigErrors, Descriptor, Rules, RulesDecision, RulesLimiter};
use tokio::time::{Instant, MissedTickBehavior, interval};

/// The time between two steps of the traffic.
const STEP: Duration = Duration::from_millis(100);
/// The steps between two payments.
const PAYMENT_STEPS: usize = 4;
/// The most payments that are held: more than the rule admits, which an operator can switch open.
const MAX_PAYMENTS: usize = 32;
/// How long a payment takes, and how long during an outage of its provider.
const PAYMENT: Duration = Duration::from_millis(900);
const HANGING_PAYMENT: Duration = Duration::from_secs(10);
const ATTACKER: &str = "203.0.113.66";
/// After how many steps a request is made, and the key and the values of its descriptor, in turn.
const REQUESTS: [(usize, &str, &[&str]); 8] = [
    (15, "user", &["carol", "dave", "frank", "grace", "heidi", "ivan", "judy", "kim", "leo", "nina"]),
    // Above the limit: a script that does not wait, and a user with an override.
    (3, "user", &["oscar"]),
    (12, "user", &["mallory"]),
    (40, "path", &["/search"]),
    (30, "login", &["192.0.2.7", "192.0.2.19", "198.51.100.4", "198.51.100.31"]),
    (2, "login", &[ATTACKER]),
    (3, "tenant", &["globex"]),
    (8, "tenant", &["initech"]),
];

/// Returns the rules.
pub(super) fn rules() -> Result<Rules, ConfigErrors> {
    Rules::parse("demo.yaml", include_str!("../demo.yaml"))
}

/// Makes requests, as long as the runtime of the service runs.
pub(super) async fn make_traffic(limits: RulesLimiter) {
    let control = limits.limiter().control();
    let more = Quota::fixed_window(60, Duration::from_secs(60)).aligned_to_clock();
    let _ = control.set_override("demo.user", "mallory", more, Duration::from_secs(86_400)).await;
    let mut traffic = Traffic { limits, acme_left: u64::MAX, payments: Vec::new() };
    let mut steps = interval(STEP);
    steps.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for step in 0.. {
        steps.tick().await;
        // A step can fail: the machine has slept longer than permits live, or the service ends.
        let _ = traffic.step(step).await;
    }
}

struct Traffic {
    limits: RulesLimiter,
    /// The units that the tenant near its limit had left.
    acme_left: u64,
    /// The payments in progress, with their ends.
    payments: Vec<(Instant, Permits)>,
}

impl Traffic {
    async fn step(&mut self, step: usize) -> Result<(), Error> {
        for (steps, key, values) in REQUESTS {
            if step.is_multiple_of(steps) {
                let _ = self.check(key, values[step / steps % values.len()], 1).await?;
            }
        }
        self.charge_acme().await?;
        if step.is_multiple_of(PAYMENT_STEPS) {
            self.begin_payment().await?;
        }
        let now = Instant::now();
        self.payments.retain(|(end, _)| *end > now);
        Ok(())
    }

    /// Keeps the tenant acme below 60 of its 600 units: it takes the unit that each step gives back.
    async fn charge_acme(&mut self) -> Result<(), Error> {
        let hits = if self.acme_left < 60 { 1 } else { 20 };
        let decision = self.check("tenant", "acme", hits).await?;
        let decided = decision.binding().and_then(|outcome| outcome.decision());
        self.acme_left = decided.map_or(0, |decision| decision.remaining());
        Ok(())
    }

    /// Begins a payment, if the limit in flight admits it. During an outage it hangs, so that the permits run out.
    async fn begin_payment(&mut self) -> Result<(), Error> {
        let is_outage = !self.check("outage", "on", 0).await?.is_allowed();
        let takes = if is_outage { HANGING_PAYMENT } else { PAYMENT };
        let provider = Descriptor::from([("provider", "cards")]);
        if self.payments.len() < MAX_PAYMENTS
            && let Acquired::Admitted(permits, _) = self.limits.acquire("payments", &[provider]).await?
        {
            self.payments.push((Instant::now() + takes, permits));
        }
        Ok(())
    }

    async fn check(&self, key: &'static str, value: &str, hits: u64) -> Result<RulesDecision, Error> {
        self.limits.check("demo", &[Descriptor::new().entry(key, value).hits(hits)]).await
    }
}

/// Returns the lines to print: what to try, and how to stop.
pub(super) fn lines(http: SocketAddr, admin: Option<SocketAddr>) -> Vec<String> {
    let curl = |key: &str, value: &str| {
        let entry = format!(r#"{{"key": "{key}", "value": "{value}"}}"#);
        format!(
            r#"  curl -s http://{http}/json -d '{{"domain": "demo", "descriptors": [{{"entries": [{entry}]}}]}}'"#
        )
    };
    let mut lines = vec![
        curl("user", "bob"),
        "Try it six times: the rules admit 5 requests a minute for each user, and for `ada` any number."
            .to_owned(),
        "The demo sends requests of its own: users, a tenant near its limit, payments, and an attacker."
            .to_owned(),
    ];
    if let Some(admin) = admin {
        lines.extend([
            "Watch them in the web console, and lift the attacker's ban:".to_owned(),
            format!("  http://{admin}/key?key={ATTACKER}"),
        ]);
    }
    lines.extend([
        "Begin an outage of the payment provider for 30 s: its payments hang until the limit in flight denies more."
            .to_owned(),
        curl("outage", "on"),
        "Stop it with Ctrl-C.".to_owned(),
    ]);
    lines
}
