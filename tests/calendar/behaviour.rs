//! The behavior of calendar windows, with exact times, on every store. The clock begins at 2020-01-01 00:00 UTC.

use std::time::Duration;

use tidegate::{Gate, Quota, Rate, Settlement, Token};

use crate::support::behaviours;
use crate::support::world::{World, check, passes};

const HOUR: Duration = Duration::from_secs(3_600);
const MICRO: Duration = Duration::from_micros(1);

fn days(days: u32) -> Duration {
    24 * days * HOUR
}

fn gate(world: &World, name: &str, calendar: &str) -> Gate {
    world.gate(name, Quota::calendar_window(6, calendar.parse().unwrap()))
}

/// Uses up the window, and asserts that it ends after `left`, to the microsecond.
async fn assert_ends_after(world: &World, gate: &Gate, now: Duration, left: Duration) {
    world.set(now);
    assert_eq!(passes(gate, "x", 7).await, 6, "{gate:?}");
    let denied = check(gate, "x").await;
    assert!(!denied.is_allowed(), "{gate:?}");
    assert_eq!((denied.retry_after(), denied.reset_after()), (left, left), "{gate:?}");
    world.set(now + left - MICRO);
    let denied = check(gate, "x").await;
    assert!(!denied.is_allowed() && denied.retry_after() == MICRO, "{gate:?}: {denied:?}");
    world.set(now + left);
    assert_eq!(passes(gate, "x", 1).await, 1, "{gate:?}: a boundary belongs to the next window");
}

behaviours! {
    async fn windows_end_with_the_months_of_their_zone(world) {
        if world.is_leased {
            return; // The time of a lease is that of its process, which does not jump.
        }
        // January from 00:00 UTC, and in Berlin from 01:00.
        let utc = gate(world, "utc", "month");
        assert_ends_after(world, &utc, Duration::ZERO, days(31)).await;
        let berlin = gate(world, "berlin", "month@Europe/Berlin");
        assert_ends_after(world, &berlin, Duration::ZERO, days(31) - HOUR).await;
        // March loses an hour.
        assert_ends_after(world, &berlin, days(60) - HOUR + MICRO, days(31) - HOUR - MICRO).await;
        let billing = gate(world, "billing", "month+31@Europe/Berlin");
        assert_ends_after(world, &billing, days(31), days(28) - HOUR).await;
    }

    async fn days_with_a_change_of_daylight_saving_time_last_23_and_25_hours(world) {
        if world.is_leased {
            return; // The time of a lease is that of its process, which does not jump.
        }
        let day = gate(world, "day", "day@Europe/Berlin");
        // 29 March and 25 October 2020.
        assert_ends_after(world, &day, days(88) - HOUR, 23 * HOUR).await;
        assert_ends_after(world, &day, days(298) - 2 * HOUR, 25 * HOUR).await;
    }

    async fn step_back_over_a_boundary_keeps_the_count_until_the_boundary_comes_again(world) {
        if world.is_leased {
            return; // Leased units end with the window in which they were taken.
        }
        let month = gate(world, "month", "month");
        world.set(days(31) + HOUR);
        assert_eq!(passes(&month, "x", 4).await, 4);
        // 23:00 on 31 January, again.
        world.set(days(31) - HOUR);
        let again = check(&month, "x").await;
        assert_eq!((again.remaining(), again.reset_after()), (1, HOUR), "the count of February, now in January");
        world.set(days(31));
        assert_eq!(check(&month, "x").await.remaining(), 5, "a new February");
    }

    async fn verbs_do_in_calendar_windows_what_they_do_in_other_fixed_windows(world) {
        let month = gate(world, "month", "month+15@Asia/Kolkata");
        let bucket = world.gate("bucket", Quota::token_bucket(6, Rate::per_hour(6)));
        // In India, the 15th begins at 18:30 UTC.
        let boundary = days(14) - HOUR * 11 / 2;
        world.set(boundary - HOUR);
        month.penalize("a", 9).await.unwrap();
        assert_eq!(month.peek("a").await.unwrap().retry_after(), HOUR);
        month.refund("a", 5).await.unwrap();
        assert_eq!(month.peek("a").await.unwrap().remaining(), 2);
        month.block("a", 2 * HOUR).await.unwrap();
        assert!(!check(&month, "a").await.is_allowed());
        assert_eq!(check(&month, "a").await.retry_after(), 2 * HOUR);
        world.set(boundary);
        assert_eq!(check(&month, "a").await.retry_after(), HOUR, "a block outlasts the window");
        month.unblock("a").await.unwrap();
        assert_eq!(month.peek("a").await.unwrap().remaining(), 6);
        let pair = [month.key("b").cost(4), bucket.key("b")];
        assert!(world.limiter.check_all(pair).await.unwrap().is_allowed());
        let denied = world.limiter.check_all([month.key("b").cost(4), bucket.key("b")]).await.unwrap();
        assert!(!denied.is_allowed() && denied.binding_index() == 0);
        assert_eq!(denied.retry_after(), days(31));
        let reservation = month.reserve("c", 5).await.unwrap();
        reservation.commit(2).await.unwrap();
        month.reset("b").await.unwrap();
        for (key, expected) in [("b", 6), ("c", 4)] {
            assert_eq!(month.peek(key).await.unwrap().remaining(), expected, "{key}");
        }
    }

    async fn units_of_the_previous_window_are_not_refunded_in_the_next_one(world) {
        let month = gate(world, "month", "month@Europe/Berlin");
        world.set(days(31) - 2 * HOUR);
        let reservation = month.reserve("x", 5).await.unwrap();
        world.set(days(31) - HOUR);
        assert_eq!(passes(&month, "x", 4).await, 4);
        reservation.cancel().await.unwrap();
        let left = month.peek("x").await.unwrap().remaining();
        assert!(left <= 2, "{left}");
    }

    async fn any_process_settles_a_reservation_in_a_calendar_window_by_its_token(world) {
        let month = gate(world, "month", "month+15@Europe/Berlin");
        let other = world.gate("other", Quota::fixed_window(6, HOUR));
        let checks = [month.key("x").cost(5), other.key("x").cost(2)];
        let reserved = world.limiter.reserve(checks).await.unwrap();
        // As a process reads it from a queue.
        let token: Token = reserved.token().unwrap().to_string().parse().unwrap();
        let settled = world.limiter.commit(&token, [1, 2]).await.unwrap();
        assert_eq!(settled, [Settlement::Settled; 2]);
        assert_eq!(month.peek("x").await.unwrap().remaining(), 5);
    }

    async fn day_in_utc_decides_as_a_clock_aligned_window_of_24_hours(world) {
        if world.is_leased {
            return; // The time of a lease is that of its process, which does not jump.
        }
        let calendar = gate(world, "calendar", "day@UTC");
        let clock = world.gate("clock", Quota::fixed_window(6, days(1)).aligned_to_clock());
        for step in [0, 1, 5, 12, 23, 24, 25, 47, 48, 71, 96, 300] {
            world.set(HOUR * step);
            for cost in [3, 2, 4, 1] {
                let one = calendar.check_cost("x", cost).await.unwrap();
                let other = clock.check_cost("x", cost).await.unwrap();
                let seen = |it: &tidegate::Decision| {
                    (it.is_allowed(), it.remaining(), it.retry_after(), it.reset_after())
                };
                assert_eq!(seen(&one), seen(&other), "{step} h, cost {cost}");
            }
        }
    }
}
