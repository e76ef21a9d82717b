//! A limiter whose clock the test controls: in memory with a manual clock, or on a real Redis with the
//! production scripts, whose wall clock is frozen until the test moves it.

use std::time::Duration;

use tidegate::{Builder, Decision, Gate, Lease, Limiter, ManualClock, Quota};
use tidegate_testkit::Cluster;
use tidegate_testkit::{Pool, Pooled, Server};

use crate::acl;
use crate::fixture::calls;

/// 2020-01-01 00:00:00 UTC: the beginning of a minute, an hour and a day.
pub const START: Duration = Duration::from_secs(1_577_836_800);

pub struct World {
    pub limiter: Limiter,
    clock: Clock,
    /// Whether every gate that supports leases is leased.
    pub is_leased: bool,
}

enum Clock {
    Memory(ManualClock),
    // The clock of the server and the clock of this process show the same time.
    Redis { server: Pooled<Server>, here: ManualClock },
    Cluster { cluster: Pooled<Cluster>, here: ManualClock },
}

/// If all servers of the pool are in use, further tests wait until one is returned.
static SERVERS: Pool<Server> = Pool::new(8);
static CLUSTERS: Pool<Cluster> = Pool::new(2);

impl World {
    pub fn memory() -> Self {
        let clock = ManualClock::at(START);
        Self {
            limiter: Limiter::in_memory_with(clock.clone()),
            clock: Clock::Memory(clock),
            is_leased: false,
        }
    }

    pub fn redis() -> Self {
        Self::redis_with(|builder| builder)
    }

    pub fn redis_with(settings: impl FnOnce(Builder) -> Builder) -> Self {
        let start = || {
            let server = Server::with_shiftable_clock()?;
            acl::create_user(&server);
            Ok(server)
        };
        let server = SERVERS.get(start).unwrap();
        server.flush().unwrap();
        let here = ManualClock::at(START);
        // Uses the permissions in docs/operate/redis-user.md, so a missing permission fails these tests.
        let builder = Limiter::builder().url(server.url()).credentials(acl::USER, acl::PASSWORD);
        let builder = builder.deadline(Duration::from_secs(10));
        let limiter = settings(builder.manual_clock(here.clone())).build().unwrap();
        let world = Self { limiter, clock: Clock::Redis { server, here }, is_leased: false };
        world.set(Duration::ZERO);
        world
    }

    /// Returns a world on three primaries whose clocks are frozen.
    pub fn cluster_with(settings: impl FnOnce(Builder) -> Builder) -> Self {
        let cluster = CLUSTERS.get(Cluster::with_shiftable_clock).unwrap();
        cluster.flush().unwrap();
        let here = ManualClock::at(START);
        let builder = Limiter::builder().cluster(cluster.urls()).deadline(Duration::from_secs(10));
        let limiter = settings(builder.manual_clock(here.clone())).build().unwrap();
        let world = Self { limiter, clock: Clock::Cluster { cluster, here }, is_leased: false };
        world.set(Duration::ZERO);
        world
    }

    pub fn leased(self) -> Self {
        Self { is_leased: true, ..self }
    }

    pub fn gate(&self, name: &str, quota: Quota) -> Gate {
        let is_leasable = quota.kind().algorithm().unleasable().is_none();
        let gate = self.limiter.gate(name, quota);
        if self.is_leased && is_leasable { gate.leased(Lease::new().max_keys(100)) } else { gate }
    }

    /// Sets the clock to [`START`] plus `since_start`.
    pub fn set(&self, since_start: Duration) {
        match &self.clock {
            Clock::Memory(clock) => clock.set(START + since_start),
            Clock::Redis { server, here, .. } => {
                here.set(START + since_start);
                server.freeze_clock(u64::try_from(here.now().as_micros()).unwrap());
            }
            Clock::Cluster { cluster, here, .. } => {
                here.set(START + since_start);
                cluster.freeze_clock(u64::try_from(here.now().as_micros()).unwrap());
            }
        }
    }

    /// Removes a key from Redis, as another process would.
    pub fn delete(&self, key: &str) {
        match &self.clock {
            Clock::Memory(_) => panic!("no other process can change this memory"),
            Clock::Redis { server, .. } => assert_eq!(server.cli(&["DEL", key]).unwrap(), "(integer) 1"),
            Clock::Cluster { cluster, .. } => {
                assert!(cluster.cli(&["-c", "DEL", key]).unwrap().ends_with("(integer) 1"));
            }
        }
    }

    /// Waits until the store answers. On a loaded machine, an attempt to connect can take longer than its second; then
    /// the failure policy would decide a test's first check.
    pub async fn connect(&self) {
        self.limiter.ready_within(Duration::from_secs(60)).await.unwrap();
    }

    /// Runs redis-cli on the server, and returns its output.
    pub fn redis_cli(&self, arguments: &[&str]) -> String {
        match &self.clock {
            Clock::Redis { server, .. } => server.cli(arguments).unwrap(),
            Clock::Memory(_) | Clock::Cluster { .. } => panic!("a command is for one server"),
        }
    }

    /// Returns how many times the scripts have been called.
    pub fn script_calls(&self) -> u64 {
        match &self.clock {
            Clock::Redis { server, .. } => calls(server, "evalsha"),
            Clock::Memory(_) | Clock::Cluster { .. } => panic!("the calls of one server are counted"),
        }
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        let now = match &self.clock {
            Clock::Memory(clock) => clock.now(),
            Clock::Redis { here, .. } | Clock::Cluster { here, .. } => here.now(),
        };
        self.set(now - START + by);
    }
}

/// Makes `checks` checks and returns how many are allowed.
pub async fn passes(gate: &Gate, key: &str, checks: usize) -> usize {
    let mut allowed = 0;
    for _ in 0..checks {
        allowed += usize::from(gate.check(key).await.unwrap().is_allowed());
    }
    allowed
}

pub async fn check(gate: &Gate, key: &str) -> Decision {
    gate.check(key).await.unwrap()
}

pub async fn allowed(gate: &Gate, key: &str) -> bool {
    check(gate, key).await.is_allowed()
}

/// Defines a test of each behavior on each store. On Redis, also with batching and the deny cache on and off,
/// and with leases.
#[macro_export]
macro_rules! behaviours {
    ($($(#[$meta:meta])* async fn $name:ident($world:ident) $body:block)+) => {
        $($(#[$meta])* async fn $name($world: &$crate::world::World) $body)+

        $crate::behaviours!(@in memory: $crate::world::World::memory(); $($name)+);
        $crate::behaviours!(@in redis: $crate::world::World::redis(); $($name)+);
        $crate::behaviours!(@in redis_one_by_one: $crate::world::World::redis_with(
            |builder| builder.batching(false).deny_cache(std::time::Duration::ZERO)); $($name)+);
        $crate::behaviours!(@in redis_batched: $crate::world::World::redis_with(
            |builder| builder.deny_cache(std::time::Duration::ZERO)); $($name)+);
        $crate::behaviours!(@in redis_deny_cache: $crate::world::World::redis_with(
            |builder| builder.batching(false)); $($name)+);
        $crate::behaviours!(@in redis_leased: $crate::world::World::redis().leased(); $($name)+);
        $crate::behaviours!(@in cluster: $crate::world::World::cluster_with(|builder| builder); $($name)+);
        $crate::behaviours!(@in cluster_one_by_one: $crate::world::World::cluster_with(
            |builder| builder.batching(false).deny_cache(std::time::Duration::ZERO)); $($name)+);
    };
    (@in $module:ident: $world:expr; $($name:ident)+) => {
        mod $module {
            $(#[tokio::test] async fn $name() {
                let world = $world;
                world.connect().await;
                super::$name(&world).await;
            })+
        }
    };
}
