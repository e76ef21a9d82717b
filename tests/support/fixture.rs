//! What several files of tests need.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use harness::Server;
use tidegate::internals::{Item, Record, take};
use tidegate::{Builder, Decision, Limiter, OnFailure, Quota, Rate};

/// Long enough that only a hang makes a test miss it, however busy the machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

/// A namespace that nobody else uses: the server is shared by all tests.
pub(crate) fn namespace() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

pub(crate) fn builder(url: &str) -> Builder {
    builder_as_is(url).on_failure(OnFailure::Error).breaker(false)
}

/// With the defaults for a Redis that does not answer.
pub(crate) fn builder_as_is(url: &str) -> Builder {
    Limiter::builder().url(url).namespace(&namespace()).deadline(PATIENCE)
}

pub(crate) fn limiter(server: &Server) -> Limiter {
    builder(server.url()).build().unwrap()
}

/// Each algorithm, with a limit of `limit` in each `window`.
pub(crate) fn quotas(limit: u64, window: Duration) -> [(&'static str, Quota); 6] {
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

/// Waits until something is so.
pub(crate) async fn soon(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !is_so().await {
        assert!(start.elapsed() < PATIENCE, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// How often the server was asked each command.
pub(crate) fn calls(server: &Server, command: &str) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]).unwrap();
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

/// A port of this machine on which nobody listens: none that was free a moment
/// ago, since the next server that a test starts may be given that one.
pub(crate) const fn closed_port() -> u16 {
    1
}

/// Decisions on asks for one unit of one key: by the server's instant, how many
/// asked and how many were admitted.
#[derive(Debug, Default)]
pub(crate) struct History(pub(crate) BTreeMap<u64, (u64, u64)>);

impl History {
    pub(crate) fn add(&mut self, decision: &Decision) {
        let (asked, admitted) = self.0.entry(decision.server_now_us()).or_default();
        *asked += 1;
        *admitted += u64::from(decision.is_allowed());
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (&instant, &(asked, admitted)) in &other.0 {
            let sum = self.0.entry(instant).or_default();
            *sum = (sum.0 + asked, sum.1 + admitted);
        }
    }

    pub(crate) fn asked(&self) -> u64 {
        self.0.values().map(|(asked, _)| asked).sum()
    }

    pub(crate) fn admitted(&self) -> u64 {
        self.0.values().map(|(_, admitted)| admitted).sum()
    }

    /// Whether the reference, asked at the same instants, admits exactly as
    /// many at each of them.
    pub(crate) fn assert_exact(&self, quota: &Quota) {
        let mut record = Record::default();
        for (&instant, &(asked, admitted)) in &self.0 {
            let permitted = take_at(&mut record, quota, asked, instant);
            assert_eq!(admitted, permitted, "{quota}: {asked} asked at {instant}");
        }
    }

    /// What the reference admits to a caller who, at each of these instants,
    /// takes all that there is.
    pub(crate) fn ceiling(&self, quota: &Quota) -> u64 {
        let mut record = Record::default();
        self.0.keys().map(|&instant| take_at(&mut record, quota, quota.limit(), instant)).sum()
    }
}

fn take_at(record: &mut Record, quota: &Quota, n: u64, instant: u64) -> u64 {
    take(&mut [Item { quota, record, cost: 1, max_delay: None }], n, instant).0
}

/// Scripts wait until it is dropped.
pub(crate) struct Paused<'a>(&'a Server);

impl<'a> Paused<'a> {
    pub(crate) fn new(server: &'a Server) -> Self {
        server.cli(&["CLIENT", "PAUSE", "60000", "WRITE"]).unwrap();
        Self(server)
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.0.cli(&["CLIENT", "UNPAUSE"]).unwrap();
    }
}
