//! A limiter whose time a test moves: in memory with a clock of its own, or on a
//! real Redis with the production scripts, whose wall clock stands still until
//! it is moved.

use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use harness::Server;
use tidegate::{Builder, Decision, Gate, Limiter, ManualClock};

/// 2020-01-01 00:00:00 UTC: the beginning of a minute, an hour and a day.
pub const START: Duration = Duration::from_secs(1_577_836_800);

pub struct World {
    pub limiter: Limiter,
    clock: Clock,
}

enum Clock {
    Memory(ManualClock),
    // The server before the guard: whoever waits for the guard keeps it alive.
    Redis {
        server: Arc<Server>,
        now: Cell<Duration>,
        /// What this process counts leases by; moves with the server's.
        local: ManualClock,
        _alone: MutexGuard<'static, ()>,
    },
}

/// One server for all tests that stop its clock, one test at a time.
fn stopped_server() -> (Arc<Server>, MutexGuard<'static, ()>) {
    static SERVER: Mutex<Weak<Server>> = Mutex::new(Weak::new());
    static ALONE: Mutex<()> = Mutex::new(());
    let server = {
        let mut weak = SERVER.lock().unwrap_or_else(PoisonError::into_inner);
        weak.upgrade().unwrap_or_else(|| {
            let server = Arc::new(Server::with_shiftable_clock().unwrap());
            *weak = Arc::downgrade(&server);
            server
        })
    };
    (server, ALONE.lock().unwrap_or_else(PoisonError::into_inner))
}

impl World {
    pub fn memory() -> Self {
        let clock = ManualClock::at(START);
        Self { limiter: Limiter::in_memory_with(clock.clone()), clock: Clock::Memory(clock) }
    }

    pub fn redis() -> Self {
        Self::redis_with(|builder| builder)
    }

    pub fn redis_with(settings: impl FnOnce(Builder) -> Builder) -> Self {
        let (server, alone) = stopped_server();
        server.cli(&["FLUSHALL"]).unwrap();
        let local = ManualClock::at(START);
        let builder = Limiter::builder().url(server.url()).deadline(Duration::from_secs(10));
        let builder = builder.manual_clock(local.clone());
        let limiter = settings(builder).build().unwrap();
        let world = Self { limiter, clock: Clock::Redis { server, now: START.into(), local, _alone: alone } };
        world.set(Duration::ZERO);
        world
    }

    /// Sets the clock to so long after [`START`].
    pub fn set(&self, since_start: Duration) {
        match &self.clock {
            Clock::Memory(clock) => clock.set(START + since_start),
            Clock::Redis { server, now, local, .. } => {
                now.set(START + since_start);
                server.freeze_clock(u64::try_from(now.get().as_micros()).unwrap());
                local.set(now.get());
            }
        }
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        let now = match &self.clock {
            Clock::Memory(clock) => clock.now(),
            Clock::Redis { now, .. } => now.get(),
        };
        self.set(now - START + by);
    }
}

/// How many of so many checks pass.
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

/// Each behaviour, once for each store.
#[macro_export]
macro_rules! behaviours {
    ($($(#[$meta:meta])* async fn $name:ident($world:ident) $body:block)+) => {
        $($(#[$meta])* async fn $name($world: &$crate::support::world::World) $body)+

        mod memory {
            $(#[tokio::test] async fn $name() {
                super::$name(&$crate::support::world::World::memory()).await;
            })+
        }

        mod redis {
            $(#[tokio::test] async fn $name() {
                super::$name(&$crate::support::world::World::redis()).await;
            })+
        }
    };
}
