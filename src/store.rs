//! The store of the state: Redis, this process's memory, or a stub, with the same interface.

mod command;
pub(crate) mod generations;
mod memory;
mod redis;
mod stub;
mod take;
mod target;

use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::command::{
    Adapted, Heartbeat, LeaseCall, LeaseReply, MAX_OVERRIDE_BYTES, MAX_OVERRIDES, OverrideText, Publication,
    SettleItem, Standing, UsedCharge, Write, Written,
};
pub(crate) use self::memory::MemoryStore;
use self::redis::RedisStore;
pub use self::stub::Stub;
pub(crate) use self::take::{Companion, HolderMessage};
pub(crate) use self::take::{Group, GroupItem, MAX_WORK, Outcome};
pub(crate) use self::target::TargetCache;
pub(crate) use self::target::{GateInfo, Target};
use crate::connection::{Connection, Deadline};
use crate::error::Error;
use crate::key::HashTag;
use crate::observe::health::Server;
use crate::quota::algorithm::EXACT;
use crate::quota::reference::Before;
use crate::quota::reference::adapt::{Adaptation, Bounds, Report};
use crate::quota::reference::holds::NewHold;
use crate::quota::settlement::Settlement;
use crate::runtime::clock::{Clock, Stopwatch};

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a limiter has one, behind a pointer")]
pub(crate) enum Store {
    Redis(RedisStore),
    Memory(MemoryStore),
    Stub(Stub),
}

impl Store {
    /// Makes a Redis store. `key` is any key of the namespace.
    pub(crate) fn redis(connection: Connection, key: String) -> Self {
        Self::Redis(RedisStore::new(Arc::new(connection), key))
    }

    pub(crate) fn memory(clock: Clock, max_keys: usize) -> Self {
        Self::Memory(MemoryStore::new(clock, max_keys))
    }

    /// Returns the decision of a stub that admits every check or denies every check; otherwise `None`.
    pub(crate) const fn fixed_decision(&self) -> Option<bool> {
        match self {
            Self::Stub(stub) => stub.fixed_decision(),
            _ => None,
        }
    }

    /// Decides the groups in order. Each group sees the writes of the groups before it. Returns one outcome
    /// per group.
    pub(crate) async fn take(&self, groups: &[Group], deadline: Deadline) -> Vec<Result<Outcome, Error>> {
        match self {
            Self::Redis(store) => {
                let mut outcomes = store.take(groups, deadline).await;
                for (group, outcome) in groups.iter().zip(&mut outcomes) {
                    if outcome.as_ref().is_ok_and(|outcome| !outcome.is_possible(group)) {
                        *outcome = Err(impossible());
                    }
                }
                outcomes
            }
            Self::Memory(store) => store.take(groups),
            Self::Stub(stub) => stub.take(groups.len(), deadline).await,
        }
    }

    /// Settles one hold per item, all of the reservation `hold`. Returns one result per item: each fails alone,
    /// and can then be settled again. A repeated call changes nothing.
    ///
    /// The items have the same hash tag. `actual` is at most [`MAX_DEBT`](crate::quota::algorithm::MAX_DEBT).
    pub(crate) async fn settle(
        &self,
        hold: &NewHold,
        items: &[SettleItem],
        deadline: Deadline,
    ) -> Result<Vec<Result<Settlement, Error>>, Error> {
        match self {
            Self::Redis(store) => store.settle(hold, items, deadline).await,
            Self::Memory(store) => Ok(store.settle(hold, items)),
            Self::Stub(stub) => stub.reply(vec![Ok(Settlement::Nothing); items.len()], deadline).await,
        }
    }

    /// Makes a small write.
    pub(crate) async fn write(
        &self,
        target: &Target,
        write: Write,
        deadline: Deadline,
    ) -> Result<Written, Error> {
        match self {
            Self::Redis(store) => store.write(target, write, deadline).await,
            Self::Memory(store) => Ok(store.write(target, write)),
            Self::Stub(stub) => stub.reply(Written::default(), deadline).await,
        }
    }

    /// Charges `units` that were used, whatever the state, as far as at most `most` units are used afterwards.
    pub(crate) async fn charge_used(
        &self,
        target: &Target,
        units: u64,
        most: u64,
        deadline: Deadline,
    ) -> Result<UsedCharge, Error> {
        match self {
            Self::Redis(store) => {
                let charge = store.charge_used(target, units, most, deadline).await?;
                let algorithm = target.gate.quota.kind().algorithm();
                let is_possible = charge.now_us <= EXACT
                    && charge.charged <= units
                    && algorithm.is_possible(charge.before.raw, charge.now_us);
                if is_possible { Ok(charge) } else { Err(impossible()) }
            }
            Self::Memory(store) => Ok(store.charge_used(target, units, most)),
            Self::Stub(stub) => {
                let (before, now_us) = (Before::default(), Clock::System.now_us());
                stub.reply(UsedCharge { charged: units, before, now_us }, deadline).await
            }
        }
    }

    /// Opens, renews or ends the lease of a holder of in-flight limits. `key` is the key of the holders of the
    /// hash tag.
    pub(crate) async fn permit_lease(
        &self,
        key: &str,
        hash_tag: HashTag,
        call: LeaseCall<'_>,
        deadline: Deadline,
    ) -> Result<LeaseReply, Error> {
        match self {
            Self::Redis(store) => store.permit_lease(key, hash_tag, call, deadline).await,
            Self::Memory(store) => store.permit_lease(call),
            Self::Stub(stub) => stub.reply(LeaseReply { now_us: 0, end_us: 0 }, deadline).await,
        }
    }

    /// Adds a process's report to the adaptive limit of a key, and changes the limit if its window is over.
    ///
    /// Not repeatable: a report counts as often as it arrives.
    pub(crate) async fn adapt(
        &self,
        target: &Target,
        report: &Report,
        bounds: &Bounds,
        deadline: Deadline,
    ) -> Result<Adapted, Error> {
        match self {
            Self::Redis(store) => store.adapt(target, report, bounds, deadline).await,
            Self::Memory(store) => Ok(store.adapt(target, report, bounds)),
            Self::Stub(stub) => {
                let adaptation = Adaptation::new(bounds, 0);
                stub.reply(Adapted { adaptation, now_us: 0, wait_us: u64::MAX }, deadline).await
            }
        }
    }

    /// Returns the server's properties.
    pub(crate) async fn server(&self, deadline: Deadline) -> Result<Server, Error> {
        match self {
            Self::Redis(store) => store.server(deadline).await,
            Self::Memory(_) => {
                Ok(Server { version: "this process's memory".to_owned(), ..Server::default() })
            }
            Self::Stub(stub) => {
                let server = Server { version: "a stub".to_owned(), ..Server::default() };
                stub.reply(server, deadline).await
            }
        }
    }

    /// Counts this process. Returns the number of processes.
    pub(crate) async fn count_in(&self, beat: Heartbeat<'_>, deadline: Deadline) -> Result<u64, Error> {
        match self {
            Self::Redis(store) => store.count_in(beat, deadline).await,
            _ => Ok(1),
        }
    }

    /// Adds figures to those of the fleet, if the store is Redis. A call without a reply may have added them.
    pub(crate) async fn publish(
        &self,
        publication: Publication<'_>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        match self {
            Self::Redis(store) => store.publish(publication, deadline).await,
            _ => Ok(()),
        }
    }

    /// Returns the operators' overrides; `known` is the version that the caller has.
    pub(crate) async fn overrides(
        &self,
        key: &str,
        known: &str,
        deadline: Deadline,
    ) -> Result<Standing, Error> {
        match self {
            Self::Redis(store) => store.overrides(key, known, deadline).await,
            Self::Memory(store) => Ok(store.overrides()),
            Self::Stub(stub) => stub.reply(Standing::default(), deadline).await,
        }
    }

    pub(crate) async fn set_override(
        &self,
        key: &str,
        entry: &OverrideText,
        deadline: Deadline,
    ) -> Result<(), Error> {
        match self {
            Self::Redis(store) => store.set_override(key, entry, deadline).await,
            Self::Memory(store) => store.set_override(entry),
            Self::Stub(stub) => stub.reply((), deadline).await,
        }
    }

    /// Returns `None` if the store is not Redis.
    #[cfg(any(feature = "admin", feature = "regions"))]
    pub(crate) fn connection(&self) -> Option<&Arc<Connection>> {
        match self {
            Self::Redis(store) => Some(store.connection()),
            _ => None,
        }
    }

    /// Returns `None` if the store is not this process's memory.
    #[cfg(feature = "admin")]
    pub(crate) const fn as_memory(&self) -> Option<&MemoryStore> {
        match self {
            Self::Memory(store) => Some(store),
            _ => None,
        }
    }

    /// Returns the address of the Redis, without credentials; `None` if the store is not Redis.
    pub(crate) fn address(&self) -> Option<String> {
        match self {
            Self::Redis(store) => Some(store.address()),
            _ => None,
        }
    }

    /// Names the event that unanswered callers wait for.
    pub(crate) fn waited_for(&self) -> &'static str {
        match self {
            Self::Redis(store) => store.waited_for(),
            _ => "an answer",
        }
    }

    /// Returns a stopwatch on the clock that [`sleep`](Self::sleep) uses.
    pub(crate) fn stopwatch(&self) -> Stopwatch {
        self.clock().stopwatch()
    }

    /// Returns the clock that [`sleep`](Self::sleep) uses.
    pub(crate) fn clock(&self) -> Clock {
        match self {
            Self::Memory(store) => store.clock().clone(),
            _ => Clock::System,
        }
    }

    /// Returns the number of connections made so far: a change means that the state may have been lost.
    pub(crate) fn connections(&self) -> u64 {
        match self {
            Self::Redis(store) => store.connections(),
            _ => 0,
        }
    }

    /// Sleeps on the store's clock.
    pub(crate) async fn sleep(&self, duration: Duration) {
        match self {
            Self::Memory(store) => store.clock().sleep(duration).await,
            _ => tokio::time::sleep(duration).await,
        }
    }

    /// Releases the connection.
    pub(crate) fn close(&self) {
        if let Self::Redis(store) = self {
            store.close();
        }
    }
}

fn impossible() -> Error {
    Error::unavailable("its reply holds numbers that tidegate's scripts never reply: is this a Redis?")
}
