//! Settings, quotas, waits and histories that several test files share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tidegate::reference::{Item, Record, take};
use tidegate::{Builder, Decision, Limiter, OnFailure, Quota, Rate};
use tidegate_testkit::Server;

/// Long enough that only a hang makes a test miss it, also on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The time after which [`soon`] gives up. Longer than [`PATIENCE`], since the condition itself may wait for a
/// check that takes that long.
pub const HANGS: Duration = Duration::from_secs(30);

pub const HOUR: Duration = Duration::from_secs(3_600);

/// Returns an unused namespace, because all tests share one server.
pub fn namespace() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

pub fn builder(url: &str) -> Builder {
    builder_as_is(url).on_failure(OnFailure::Error).breaker(false)
}

/// Returns settings with the default failure policy and circuit breaker. Many tests make Redis fail on purpose, so
/// warnings do not fill the output.
pub fn builder_as_is(url: &str) -> Builder {
    Limiter::builder().url(url).namespace(&namespace()).deadline(PATIENCE).stderr_warnings(false)
}

pub fn limiter(server: &Server) -> Limiter {
    builder(server.url()).build().unwrap()
}

/// Returns a quota of each algorithm that admits `limit` units per `window`.
pub fn quotas(limit: u64, window: Duration) -> [(&'static str, Quota); 6] {
    let rate = Rate::new(limit, window);
    [
        ("token", Quota::token_bucket(limit, rate)),
        ("leaky", Quota::leaky_bucket(limit, rate)),
        ("fixed", Quota::fixed_window(limit, window)),
        ("fixed.clock", Quota::fixed_window(limit, window).aligned_to_clock()),
        ("log", Quota::sliding_log(limit, window)),
        ("counter", Quota::sliding_counter(limit, window)),
    ]
}

/// Waits until `holds` returns true. Panics with the name of the condition if it does not hold after
/// [`HANGS`].
pub async fn soon(condition: &str, mut holds: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < HANGS, "not in time: {condition}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Returns how many times the server has executed a command.
pub fn calls(server: &Server, command: &str) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]).unwrap();
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

/// Returns a port of this machine on which no server listens. It is fixed: a free port could be assigned to
/// the next server that a test starts.
pub const fn closed_port() -> u16 {
    1
}

/// The decisions of checks for one unit of one key. For each time of the server: the number of checks, and
/// the number of them that were admitted.
#[derive(Debug, Default)]
pub struct History(pub BTreeMap<u64, (u64, u64)>);

impl History {
    pub fn add(&mut self, decision: &Decision) {
        let (checks, admitted) = self.0.entry(decision.server_now_us()).or_default();
        *checks += 1;
        *admitted += u64::from(decision.is_allowed());
    }

    pub fn merge(&mut self, other: &Self) {
        for (&instant, &(checks, admitted)) in &other.0 {
            let sum = self.0.entry(instant).or_default();
            *sum = (sum.0 + checks, sum.1 + admitted);
        }
    }

    pub fn checks(&self) -> u64 {
        self.0.values().map(|(checks, _)| checks).sum()
    }

    pub fn admitted(&self) -> u64 {
        self.0.values().map(|(_, admitted)| admitted).sum()
    }

    /// Asserts that the reference admits the same number of checks at each of these times.
    pub fn assert_exact(&self, quota: &Quota) {
        let mut record = Record::default();
        for (&instant, &(checks, admitted)) in &self.0 {
            let permitted = take_at(&mut record, quota, checks, instant);
            assert_eq!(admitted, permitted, "{quota}: {checks} checks at {instant}");
        }
    }

    /// Returns the number of units that the reference admits if, at each of these times, a caller takes as
    /// many as possible.
    pub fn ceiling(&self, quota: &Quota) -> u64 {
        let mut record = Record::default();
        self.0.keys().map(|&instant| take_at(&mut record, quota, quota.limit(), instant)).sum()
    }
}

fn take_at(record: &mut Record, quota: &Quota, n: u64, instant: u64) -> u64 {
    take(&mut [Item::new(quota, record, 1, None)], n, instant)
}

/// Pauses all writes, and therefore all scripts, of a server until it is dropped.
pub struct Paused<'a>(&'a Server);

impl<'a> Paused<'a> {
    pub fn new(server: &'a Server) -> Self {
        server.cli(&["CLIENT", "PAUSE", "60000", "WRITE"]).unwrap();
        Self(server)
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.0.cli(&["CLIENT", "UNPAUSE"]).unwrap();
    }
}
