//! The calls of in-flight limits: messages of one holder, and groups that contain them.

use futures_util::future::join_all;
use redis::Cmd;
use smallvec::SmallVec;

use super::reply::Reply;
use super::{CallKind, Optional, Quotas, RedisStore};
use crate::connection::Deadline;
use crate::error::Error;
use crate::quota::Quota;
use crate::store::take::{Companion, Group, GroupItem, HolderMessage, Outcome};

/// The sender of all messages of a call. Without one, the call peeks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sender<'a> {
    name: &'a str,
    lease_end_us: u64,
}

impl<'a> Sender<'a> {
    /// Returns the sender of the group's messages. A message of another sender, which no caller makes, would be
    /// attributed to the first one: then the group has no sender, and is refused as lapsed.
    pub(super) fn of(group: &'a Group) -> Self {
        let sender =
            |message: &'a HolderMessage| Self { name: &message.holder, lease_end_us: message.lease_end_us };
        let mut senders = group.items.iter().filter_map(message_of).map(sender);
        let first = senders.next().unwrap_or_default();
        if senders.all(|other| other == first) { first } else { Self::default() }
    }
}

/// Appends arguments in the order of the header of `acquire.lua`.
pub(super) fn acquire_args(sender: Sender<'_>, quota: &Quota, groups: &[&Group], command: &mut Cmd) {
    let items = || groups.iter().flat_map(|group| group.items.iter().map(|item| (group.n, item)));
    keys(groups, command);
    command.arg(sender.name).arg(sender.lease_end_us).arg(quota.kind().args()[0]);
    for (_, item) in items() {
        append_message(item, command);
    }
    let wanted = items().map(|(n, item)| (n, item.cost));
    let Some(first) = wanted.clone().next() else { return };
    let alike = wanted.clone().all(|other| other == first);
    if alike && first == (1, 1) {
        return;
    }
    wanted.take(if alike { 1 } else { usize::MAX }).for_each(|(n, cost)| {
        command.arg(n).arg(cost);
    });
}

/// Appends the arguments of a peek that names no other key: it passes its key in place of the leases. The script reads
/// those only if one may have lapsed since its last scan, and then fails.
pub(super) fn peek_alone_args(quota: &Quota, item: &GroupItem, command: &mut Cmd) {
    let (key, [limit, ..]) = (&item.target.redis_key, quota.kind().args());
    command.arg(2).arg(key).arg(key).arg("").arg(0).arg(limit);
    command.arg(0).arg(0).arg(0).arg(item.cost);
}

/// Appends arguments in the order of the header of `acquire_all.lua`.
pub(super) fn acquire_all_args(sender: Sender<'_>, now_us: u64, groups: &[&Group], command: &mut Cmd) {
    keys(groups, command);
    command.arg(sender.name).arg(sender.lease_end_us);
    let items = groups.iter().flat_map(|group| &group.items);
    let quotas = Quotas::append(items.map(|item| &item.target), now_us, command);
    for group in groups {
        command.arg(group.n).arg(group.items.len());
        for item in &group.items {
            command.arg(quotas.number(&item.target)).arg(item.cost);
            if item.target.gate.quota.is_in_flight() {
                append_message(item, command);
            } else {
                command.arg(Optional(item.max_delay_us));
            }
        }
    }
}

/// Appends the key of the holders, then the keys of the items.
fn keys(groups: &[&Group], command: &mut Cmd) {
    let items = || groups.iter().flat_map(|group| &group.items);
    command.arg(items().count() + 1);
    if let Some(GroupItem { target, .. }) = items().next() {
        command.arg(target.gate.prefix.holders(target.hash_tag));
    }
    for item in items() {
        command.arg(&item.target.redis_key);
    }
}

/// Appends the number of a message, and the units that it keeps. A peek has none.
fn append_message(item: &GroupItem, command: &mut Cmd) {
    let (number, keep) = message_of(item).map_or((0, Some(0)), |message| (message.number, message.keep));
    command.arg(number).arg(Optional(keep));
}

/// Returns whether groups of the call have messages about the same keys.
pub(super) fn is_shared(group: &Group) -> bool {
    group.items.iter().filter_map(message_of).any(|message| message.is_shared)
}

pub(super) fn message_of(item: &GroupItem) -> Option<&HolderMessage> {
    match item.companion.as_deref() {
        Some(Companion::Message(message)) => Some(message),
        _ => None,
    }
}

// Messages of a holder that Redis rejected because its memory is full.
//
// One message releases units and acquires others, and Redis rejects it as a whole. So it is sent again without its
// acquires, by a script that also runs without free memory.

/// A message without its acquires.
struct HolderReport {
    /// The index of its group in the call.
    index: usize,
    group: Group,
}

impl RedisStore {
    /// Reports what the holder keeps of the keys of groups that failed for lack of memory. If that fails too, the group
    /// has the error of its report: see [`Error::is_out_of_memory`].
    pub(super) async fn report_kept(
        &self,
        groups: &[&Group],
        outcomes: &mut [Result<Outcome, Error>],
        deadline: Deadline,
    ) {
        let is_rejected = |index: usize| outcomes[index].as_ref().is_err_and(Error::is_out_of_memory);
        let rejected = groups.iter().enumerate().filter(|(index, _)| is_rejected(*index));
        let reports: Vec<HolderReport> =
            rejected.flat_map(|(index, group)| reports_of(index, group)).collect();
        let calls = reports.chunk_by(|one, next| one.quota() == next.quota());
        let replies = join_all(calls.map(|reports| self.send_reports(reports, deadline))).await;
        for (report, reply) in reports.iter().zip(replies.into_iter().flatten()) {
            // A message without acquires is its own report.
            if reply.is_err() || groups[report.index].n == 0 {
                outcomes[report.index] = reply;
            }
        }
    }

    /// Sends reports about keys of one quota.
    async fn send_reports(
        &self,
        reports: &[HolderReport],
        deadline: Deadline,
    ) -> Vec<Result<Outcome, Error>> {
        let groups: Vec<&Group> = reports.iter().map(|report| &report.group).collect();
        let kind = CallKind::Report(Sender::of(groups[0]), reports[0].quota());
        match self.try_call(kind, &groups, true, deadline).await {
            Ok(reply) => Reply::new(reply).outcomes(&groups),
            Err(error) => vec![Err(error); groups.len()],
        }
    }
}

impl HolderReport {
    fn quota(&self) -> &Quota {
        &self.group.items[0].target.gate.quota
    }
}

fn reports_of(index: usize, group: &Group) -> impl Iterator<Item = HolderReport> {
    let messages = group.items.iter().filter(|item| message_of(item).is_some());
    messages.map(move |item: &GroupItem| HolderReport {
        index,
        group: Group { items: SmallVec::from_buf([item.clone()]), n: 0 },
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tidegate_testkit::Server;

    use super::*;
    use crate::connection::{Connection, Deadline, Login};
    use crate::error::Error;
    use crate::key::keyed_hash::KeyedHasher;
    use crate::key::{HashTag, KeyMode, Keyspace};
    use crate::quota::Rate;
    use crate::runtime::background::Background;
    use crate::runtime::clock::{Clock, ManualClock};
    use crate::store::{GateInfo, LeaseCall, Outcome, Store, Target, Write};

    const HOUR: Duration = Duration::from_secs(3_600);
    const START: Duration = Duration::from_secs(1_577_836_800);
    const WEB: &str = "web-1.3f2a/10000";
    const API: &str = "api-7/1000";

    /// A store whose clock the test sets, in ms after the start.
    struct World {
        store: Store,
        clock: ManualClock,
        server: Option<Server>,
        keyspace: Keyspace,
    }

    impl World {
        fn of(store: Store, server: Option<Server>, clock: ManualClock) -> Self {
            let world =
                Self { store, clock, server, keyspace: Keyspace::new("test", KeyMode::Clear).unwrap() };
            world.at(0);
            world
        }

        fn at(&self, ms: u64) {
            self.clock.set(START + Duration::from_millis(ms));
            if let Some(server) = &self.server {
                server.freeze_clock(self.clock.now().as_micros() as u64);
            }
        }

        fn target(&self, gate: &str, quota: Quota) -> Target {
            let gate = GateInfo::new(&self.keyspace, &KeyedHasher::default(), gate, quota).unwrap();
            Target::new(&Arc::new(gate), b"user:42", None)
        }

        async fn lease(&self, call: LeaseCall<'_>) -> Result<u64, Error> {
            let key = self.keyspace.holders(HashTag::default());
            let reply = self.store.permit_lease(&key, HashTag::default(), call, Deadline::new(HOUR)).await?;
            Ok(reply.end_us - START.as_micros() as u64)
        }

        async fn take(&self, n: u64, items: Vec<GroupItem>) -> Result<Outcome, Error> {
            let group = Group { items: items.into(), n };
            self.store.take(&[group], Deadline::new(HOUR)).await.remove(0)
        }

        /// Sends a message. Returns the admitted acquires, the units held before, and those that wait before.
        async fn acquire(&self, target: &Target, n: u64, message: HolderMessage) -> Result<[u64; 3], Error> {
            let outcome = self.take(n, vec![item(target, 1, message)]).await?;
            Ok([outcome.k, outcome.before[0].raw[0], outcome.before[0].raw[2]])
        }

        /// Returns the units held according to a peek.
        async fn held(&self, target: &Target) -> u64 {
            self.take(0, vec![GroupItem::new(target.clone(), 1)]).await.unwrap().before[0].raw[0]
        }
    }

    fn message(holder: &str, number: u64, keep: u64) -> HolderMessage {
        let (keep, lease_end_us) = (Some(keep), u64::MAX >> 11);
        HolderMessage { holder: holder.into(), lease_end_us, number, keep, is_shared: false }
    }

    fn item(target: &Target, cost: u64, message: HolderMessage) -> GroupItem {
        let companion = Some(Box::new(Companion::Message(message)));
        GroupItem { companion, ..GroupItem::new(target.clone(), cost) }
    }

    /// Runs a scenario on each store.
    async fn on_each(scenario: impl AsyncFn(&World)) {
        let clock = ManualClock::at(START);
        let store = Store::memory(Clock::Manual(clock.clone()), 1_000);
        scenario(&World::of(store, None, clock)).await;
        let server = Server::with_shiftable_clock().unwrap();
        let info = redis::IntoConnectionInfo::into_connection_info(server.url()).unwrap();
        let background = Arc::new(Background::on_callers_runtime());
        let connection = Connection::to_server(info, Login::OfUrl, background);
        let store = Store::redis(connection, "test:2:gate".to_owned());
        scenario(&World::of(store, Some(server), ManualClock::at(START))).await;
    }

    #[tokio::test]
    async fn live_holders_hold_no_more_than_the_limit() {
        on_each(async |world| {
            let gate = world.target("gate", Quota::in_flight(3));
            world.lease(LeaseCall::Open { name: WEB }).await.unwrap();
            assert_eq!(world.lease(LeaseCall::Open { name: API }).await.unwrap(), 1_000_000);
            assert_eq!(world.acquire(&gate, 2, message(WEB, 1, 0)).await.unwrap(), [2, 0, 0]);
            assert_eq!(world.acquire(&gate, 2, message(API, 1, 0)).await.unwrap(), [1, 2, 0]);
            assert_eq!(world.acquire(&gate, 1, message(WEB, 2, 2)).await.unwrap(), [0, 3, 0]);
            // A repetition gets the same reply; an older message is refused.
            assert_eq!(world.acquire(&gate, 2, message(WEB, 1, 0)).await.unwrap(), [2, 1, 0]);
            assert!(world.acquire(&gate, 1, message(WEB, 0, 0)).await.unwrap_err().is_stale_message());
            // A release and an acquire in one message.
            assert_eq!(world.acquire(&gate, 1, message(WEB, 3, 1)).await.unwrap(), [1, 2, 0]);
            assert_eq!(world.held(&gate).await, 3);

            // The units of a holder count until the microsecond in which its lease ends.
            world.at(999);
            assert_eq!(world.held(&gate).await, 3);
            world.at(1_000);
            assert_eq!(world.held(&gate).await, 2);
            let error = world.acquire(&gate, 1, message(API, 2, 1)).await.unwrap_err();
            assert!(error.is_lapsed_lease(), "{error}");
            assert!(world.lease(LeaseCall::Renew { name: API }).await.unwrap_err().is_lapsed_lease());
            assert!(world.lease(LeaseCall::Open { name: API }).await.is_ok(), "forgotten, so as if new");
            // Restored units are counted, not checked.
            assert_eq!(world.acquire(&gate, 1, message(API, 3, 2)).await.unwrap(), [0, 4, 0]);
            assert_eq!(world.acquire(&gate, 0, message(API, 4, 0)).await.unwrap(), [0, 2, 0]);
            assert_eq!(world.acquire(&gate, 0, message(WEB, 4, 0)).await.unwrap(), [0, 0, 0]);
            assert_eq!(world.held(&gate).await, 0);
        })
        .await;
    }

    #[tokio::test]
    async fn message_sent_after_the_known_end_of_the_lease_is_refused() {
        on_each(async |world| {
            let gate = world.target("gate", Quota::in_flight(3));
            let end = world.lease(LeaseCall::Open { name: WEB }).await.unwrap();
            world.at(5_000);
            assert_eq!(world.lease(LeaseCall::Renew { name: WEB }).await.unwrap(), 15_000_000);
            world.at(10_000);
            let late = HolderMessage { lease_end_us: START.as_micros() as u64 + end, ..message(WEB, 1, 0) };
            assert!(world.acquire(&gate, 1, late).await.unwrap_err().is_lapsed_lease());
            assert_eq!(world.acquire(&gate, 1, message(WEB, 2, 0)).await.unwrap(), [1, 0, 0]);
            world.lease(LeaseCall::End { name: WEB }).await.unwrap();
            assert!(world.acquire(&gate, 1, message(WEB, 3, 1)).await.unwrap_err().is_lapsed_lease());
        })
        .await;
    }

    #[tokio::test]
    async fn group_of_a_rate_and_an_in_flight_limit_takes_all_or_nothing() {
        on_each(async |world| {
            let gate = world.target("gate", Quota::in_flight(2));
            let rate = world.target("rate", Quota::token_bucket(3, Rate::per_hour(3)));
            world.lease(LeaseCall::Open { name: WEB }).await.unwrap();
            let acquire = async |n, number, keep| {
                let items = vec![GroupItem::new(rate.clone(), 1), item(&gate, 1, message(WEB, number, keep))];
                world.take(n, items).await.unwrap().k
            };
            assert_eq!(acquire(1, 1, 0).await, 1);
            assert_eq!(acquire(1, 1, 0).await, 1, "a repetition, which charges nothing");
            assert_eq!(acquire(2, 2, 1).await, 1);
            // Denied by the limit in flight: the rate is not charged. It still releases.
            assert_eq!(acquire(1, 3, 2).await, 0);
            assert_eq!(acquire(2, 4, 0).await, 1);
            assert_eq!(acquire(1, 5, 0).await, 0, "the rate is used up");
            assert_eq!(world.held(&gate).await, 0);
        })
        .await;
    }

    #[tokio::test]
    async fn blocked_key_admits_nothing_and_accepts_releases() {
        on_each(async |world| {
            let gate = world.target("gate", Quota::in_flight(2));
            let block = async |for_us| {
                world.store.write(&gate, Write::Block { for_us }, Deadline::new(HOUR)).await.unwrap()
            };
            world.lease(LeaseCall::Open { name: WEB }).await.unwrap();
            assert_eq!(world.acquire(&gate, 1, message(WEB, 1, 0)).await.unwrap(), [1, 0, 0]);
            block(1_000_000).await;
            assert_eq!(world.acquire(&gate, 1, message(WEB, 2, 1)).await.unwrap(), [0, 1, 0]);
            assert_eq!(world.acquire(&gate, 1, message(WEB, 3, 0)).await.unwrap(), [0, 0, 0]);
            world.at(1_000);
            assert_eq!(world.acquire(&gate, 1, message(WEB, 4, 0)).await.unwrap(), [1, 0, 0]);
            block(1_000_000).await;
            block(0).await;
            assert_eq!(world.acquire(&gate, 1, message(WEB, 5, 1)).await.unwrap(), [1, 1, 0]);
        })
        .await;
    }
}
