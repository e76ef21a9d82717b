//! Reservations: the arguments and replies of the scripts `reserve` and `settle`.

use redis::{Cmd, Value};

use super::reply::{Reply, unexpected};
use super::{Optional, Quotas};
use crate::error::Error;
use crate::quota::reference::holds::NewHold;
use crate::quota::settlement::Settlement;
use crate::store::command::SettleItem;
use crate::store::take::Group;

/// Returns the word for the end of a hold.
fn at_end(hold: &NewHold) -> &'static str {
    if hold.is_refunded { "back" } else { "keep" }
}

/// Appends arguments in the order of the header of `reserve.lua`.
pub(super) fn reserve_args(now_us: u64, groups: &[&Group], command: &mut Cmd) {
    let items = || groups.iter().flat_map(|group| &group.items);
    command.arg(items().map(|item| 1 + usize::from(item.holds().is_some())).sum::<usize>());
    for item in items() {
        command.arg(&item.target.redis_key);
        if item.holds().is_some() {
            command.arg(item.target.holds_key());
        }
    }
    let quotas = Quotas::append(items().map(|item| &item.target), now_us, command);
    for group in groups {
        command.arg(group.n).arg(group.items.len());
        match group.new_hold() {
            Some(hold) => command.arg(&*hold.id).arg(hold.ttl_us).arg(at_end(hold)),
            None => command.arg("").arg("").arg(""),
        };
        for item in &group.items {
            command.arg(quotas.number(&item.target)).arg(item.cost).arg(Optional(item.max_delay_us));
            command.arg(u8::from(item.holds().is_some()));
        }
    }
}

/// Appends arguments in the order of the header of `settle.lua`.
pub(super) fn settle_args(hold: &NewHold, now_us: u64, items: &[SettleItem], command: &mut Cmd) {
    command.arg(2 * items.len());
    for item in items {
        command.arg(&item.target.redis_key).arg(item.target.holds_key());
    }
    let quotas = Quotas::append(items.iter().map(|item| &item.target), now_us, command);
    for SettleItem { target, units, actual } in items {
        command.arg(quotas.number(target)).arg(&*hold.id).arg(units).arg(hold.ttl_us).arg(at_end(hold));
        command.arg(actual);
    }
}

impl Reply {
    /// Parses the items that the end of a group of `reserve` or `ban` lists.
    pub(super) fn listed(&mut self, group: &Group) -> Result<Vec<usize>, Error> {
        let count = self.number()?;
        // A foreign reply must not make this loop long.
        let numbers = (0..count.min(group.items.len() as u64)).map(|_| self.number());
        numbers.map(|number| Ok(number?.saturating_sub(1) as usize)).collect()
    }

    /// Parses the reply of `settle` to this number of items.
    pub(super) fn settlements(mut self, items: usize) -> Result<Vec<Result<Settlement, Error>>, Error> {
        self.number()?;
        let rows = (0..items).map(|_| match self.number()? {
            0 => Ok(Settlement::Nothing),
            1 => Ok(Settlement::Settled),
            2 => Ok(Settlement::Late),
            other => Err(unexpected(&Value::Int(other as i64))),
        });
        Ok(rows.collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tidegate_testkit::Server;

    use super::*;
    use crate::connection::{Connection, Deadline, Login};
    use crate::key::keyed_hash::KeyedHasher;
    use crate::key::{KeyMode, Keyspace};
    use crate::quota::{Quota, Rate};
    use crate::runtime::background::Background;
    use crate::runtime::clock::{Clock, ManualClock};
    use crate::store::{Companion, GateInfo, GroupItem, Outcome, Store, Target, Write};

    const HOUR: Duration = Duration::from_secs(3_600);
    const START: Duration = Duration::from_secs(1_577_836_800);

    /// A store whose clock the test sets.
    struct World {
        store: Store,
        clock: ManualClock,
        server: Option<Server>,
    }

    impl World {
        fn memory() -> Self {
            let clock = ManualClock::at(START);
            Self { store: Store::memory(Clock::Manual(clock.clone()), 1_000), clock, server: None }
        }

        fn redis() -> Self {
            let server = Server::with_shiftable_clock().unwrap();
            let info = redis::IntoConnectionInfo::into_connection_info(server.url()).unwrap();
            let background = Arc::new(Background::on_callers_runtime());
            let connection = Connection::to_server(info, Login::OfUrl, background);
            let store = Store::redis(connection, "test:2:gate".to_owned());
            let world = Self { store, clock: ManualClock::at(START), server: Some(server) };
            world.at(0);
            world
        }

        /// Sets the clock to this number of seconds after the start.
        fn at(&self, seconds: u64) {
            self.clock.set(START + Duration::from_secs(seconds));
            if let Some(server) = &self.server {
                server.freeze_clock(self.clock.now().as_micros() as u64);
            }
        }

        async fn take(&self, items: Vec<GroupItem>) -> Outcome {
            let group = Group { items: items.into(), n: 1 };
            let mut outcomes = self.store.take(&[group], Deadline::new(HOUR)).await;
            outcomes.remove(0).unwrap()
        }

        async fn settle(&self, hold: &NewHold, items: &[SettleItem]) -> Vec<Settlement> {
            let settled = self.store.settle(hold, items, Deadline::new(HOUR)).await.unwrap();
            settled.into_iter().map(Result::unwrap).collect()
        }
    }

    fn target(gate: &str, quota: Quota) -> Target {
        let keyspace = Keyspace::new("test", KeyMode::Clear).unwrap();
        let gate = GateInfo::new(&keyspace, &KeyedHasher::default(), gate, quota).unwrap();
        Target::new(&Arc::new(gate), b"user:42", None)
    }

    fn bucket() -> Target {
        target("bucket", Quota::token_bucket(10, Rate::per_hour(10)))
    }

    fn window() -> Target {
        target("window", Quota::fixed_window(10, HOUR))
    }

    fn hold(is_refunded: bool) -> NewHold {
        NewHold { id: "a:b".into(), ttl_us: 60_000_000, is_refunded }
    }

    fn item(target: &Target, cost: u64, hold: Option<&NewHold>) -> GroupItem {
        let companion = Some(Box::new(Companion::Holds(hold.cloned())));
        GroupItem { companion, ..GroupItem::new(target.clone(), cost) }
    }

    fn used(outcome: &Outcome) -> u64 {
        let ticks_per_unit = 360_000_000;
        outcome.before[0].raw[0].div_ceil(ticks_per_unit)
    }

    /// Runs a scenario on each store.
    async fn on_each(scenario: impl AsyncFn(&World)) {
        scenario(&World::memory()).await;
        scenario(&World::redis()).await;
    }

    #[tokio::test]
    async fn commit_refunds_unused_units_and_charges_additional_ones() {
        on_each(async |world| {
            let (bucket, window, hold) = (bucket(), window(), hold(false));
            let reserved =
                world.take(vec![item(&bucket, 8, Some(&hold)), item(&window, 6, Some(&hold))]).await;
            assert_eq!((reserved.k, &*reserved.repeated), (1, &[][..]));
            let settled = |bucket_units, window_units| {
                [(&bucket, 8, bucket_units), (&window, 6, window_units)]
                    .map(|(target, units, actual)| SettleItem { target: target.clone(), units, actual })
            };
            assert_eq!(world.settle(&hold, &settled(3, 7)).await, [Settlement::Settled; 2]);
            assert_eq!(world.settle(&hold, &settled(0, 0)).await, [Settlement::Nothing; 2]);
            let peek = world.take(vec![item(&bucket, 8, None), item(&window, 1, None)]).await;
            assert_eq!((peek.k, used(&peek), peek.before[1].raw[0]), (0, 3, 7));
        })
        .await;
    }

    #[tokio::test]
    async fn repeated_reservation_is_admitted_and_charges_nothing() {
        on_each(async |world| {
            let (bucket, window, hold) = (bucket(), window(), hold(false));
            let items = || vec![item(&bucket, 8, Some(&hold)), item(&window, 6, Some(&hold))];
            world.take(items()).await;
            let again = world.take(items()).await;
            assert_eq!((again.k, &*again.repeated, used(&again)), (1, &[0, 1][..], 8));
            // Another key of the same id is charged.
            let other = target("other", Quota::fixed_window(10, HOUR));
            let more = world.take(vec![item(&bucket, 8, Some(&hold)), item(&other, 6, Some(&hold))]).await;
            assert_eq!((more.k, &*more.repeated), (1, &[0][..]));
            let peek = world.take(vec![item(&other, 5, None)]).await;
            assert_eq!((peek.k, peek.before[0].raw[0]), (0, 6));
        })
        .await;
    }

    #[tokio::test]
    async fn denied_reservation_holds_nothing() {
        on_each(async |world| {
            let (bucket, window, hold) = (bucket(), window(), hold(true));
            world.take(vec![item(&window, 9, None)]).await;
            let denied = world.take(vec![item(&bucket, 8, Some(&hold)), item(&window, 2, Some(&hold))]).await;
            assert_eq!((denied.k, used(&denied)), (0, 0));
            let settled = [SettleItem { target: bucket.clone(), units: 8, actual: 10 }];
            assert_eq!(world.settle(&hold, &settled).await, [Settlement::Nothing]);
        })
        .await;
    }

    #[tokio::test]
    async fn hold_that_ends_keeps_its_units_or_refunds_them() {
        on_each(async |world| {
            let (kept, refunded) = (window(), target("refunded", Quota::fixed_window(10, HOUR)));
            world.take(vec![item(&kept, 10, Some(&hold(false)))]).await;
            world.take(vec![item(&refunded, 10, Some(&hold(true)))]).await;
            world.at(59);
            assert_eq!(world.take(vec![item(&refunded, 1, None)]).await.k, 0);
            world.at(60);
            assert_eq!(world.take(vec![item(&kept, 1, None)]).await.k, 0);
            assert_eq!(world.take(vec![item(&refunded, 4, None)]).await.k, 1);
            let settled = |target: &Target| [SettleItem { target: target.clone(), units: 10, actual: 9 }];
            assert_eq!(world.settle(&hold(false), &settled(&kept)).await, [Settlement::Late]);
            // Committed late: charged without a check.
            assert_eq!(world.settle(&hold(true), &settled(&refunded)).await, [Settlement::Late]);
            assert_eq!(world.settle(&hold(true), &settled(&refunded)).await, [Settlement::Nothing]);
            let peek = world.take(vec![item(&refunded, 1, None)]).await;
            assert_eq!((peek.k, peek.before[0].raw[0]), (0, 13));
        })
        .await;
    }

    #[tokio::test]
    async fn reset_removes_the_holds() {
        on_each(async |world| {
            let (window, hold) = (window(), hold(true));
            world.take(vec![item(&window, 10, Some(&hold))]).await;
            world.store.write(&window, Write::Reset, Deadline::new(HOUR)).await.unwrap();
            world.take(vec![item(&window, 10, None)]).await;
            world.at(60);
            assert_eq!(world.take(vec![item(&window, 1, None)]).await.k, 0);
        })
        .await;
    }
}
