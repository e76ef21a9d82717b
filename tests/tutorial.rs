//! For readers who come from the well-known tutorial, in which a Lua script keeps a token bucket in a Redis hash: its six
//! scenarios with its numbers, one test each, in its order. Redis runs the production scripts; its clock is frozen until
//! the test moves it, where the tutorial sleeps.
//!
//! | in the tutorial | here |
//! | --- | --- |
//! | `capacity`, `refill_rate` per second | `Quota::token_bucket(capacity, Rate::per_second(refill))`, or as text: `"60/min burst 5"` |
//! | `allow_request(client)` | `gate.check(client).await?.is_allowed()` |
//! | the fields `tokens` and `last_refill` | one field `used`, with the units used and the time at which that was true |
//! | the time of the client's clock | the time of the server's clock |
//! | `tokens` as a number with a fraction | a whole number of parts of a unit, so that nothing is rounded |

use std::time::Duration;

use tidegate::{Gate, Quota, Rate};

use crate::support::world::{World, passes};

const CLIENT: &str = "user:42";

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Returns a world, and a gate with a bucket of this capacity and refill per second.
fn bucket(capacity: u64, per_second: u64) -> (World, Gate) {
    let world = World::redis();
    let gate = world.gate("tutorial", Quota::token_bucket(capacity, Rate::per_second(per_second)));
    (world, gate)
}

/// Returns the units used that redis-cli shows, as in `"36000000/12000000 of 5, 1/us at 1577836800000000"`.
fn used_in_redis(world: &World, gate: &Gate) -> u64 {
    let shown = world.redis_cli(&["HGET", &gate.redis_key(CLIENT).unwrap(), "used"]);
    let (used, _) = shown.trim_matches('"').split_once(" of ").expect(&shown);
    let (parts, parts_per_unit) = used.split_once('/').expect(&shown);
    let [parts, parts_per_unit] = [parts, parts_per_unit].map(|number| number.parse::<u64>().unwrap());
    assert_eq!(parts % parts_per_unit, 0, "whole units: {shown}");
    parts / parts_per_unit
}

/// 1. Basic limit: 5 tokens, 1 a second. 5 requests pass, the 6th does not; 2 s later there are 2 tokens.
#[tokio::test]
async fn scenario_1_burst_passes_up_to_the_capacity_and_then_what_was_refilled() {
    let (world, gate) = bucket(5, 1);
    assert_eq!(passes(&gate, CLIENT, 6).await, 5);
    world.advance(seconds(2));
    assert_eq!(passes(&gate, CLIENT, 3).await, 2);
}

/// 2. Several clients: each has a bucket of its own.
#[tokio::test]
async fn scenario_2_exhausted_client_takes_nothing_from_another() {
    let (_world, gate) = bucket(5, 1);
    assert_eq!(passes(&gate, CLIENT, 6).await, 5);
    assert_eq!(passes(&gate, "user:43", 6).await, 5);
}

/// 3. The bucket never holds more than its capacity: 3 s at 2 a second would be 6 tokens.
#[tokio::test]
async fn scenario_3_refill_ends_at_the_capacity() {
    let (world, gate) = bucket(3, 2);
    assert_eq!(passes(&gate, CLIENT, 4).await, 3);
    world.advance(seconds(3));
    assert_eq!(passes(&gate, CLIENT, 6).await, 3);
}

/// 4. A denied request takes no token: after it, redis-cli shows 3 used, and not 4. Nor does the denial write the time: a
/// client that keeps asking still gets its token after 2 s.
#[tokio::test]
async fn scenario_4_denied_request_is_not_counted() {
    let world = World::redis();
    let gate = world.gate("tutorial", Quota::token_bucket(3, Rate::new(1, seconds(2))));
    assert_eq!(passes(&gate, CLIENT, 3).await, 3);
    let key = gate.redis_key(CLIENT).unwrap();
    let before = world.redis_cli(&["HGETALL", &key]);
    let denied = gate.check(CLIENT).await.unwrap();
    assert!(!denied.is_allowed());
    assert_eq!(denied.retry_after(), seconds(2));
    assert_eq!(world.redis_cli(&["HGETALL", &key]), before);
    assert_eq!(used_in_redis(&world, &gate), 3);
    assert_eq!(gate.peek(CLIENT).await.unwrap().remaining(), 0);
    world.advance(seconds(1));
    assert_eq!(passes(&gate, CLIENT, 1).await, 0);
    world.advance(seconds(1));
    assert_eq!(passes(&gate, CLIENT, 1).await, 1);
    assert_eq!(used_in_redis(&world, &gate), 3);
}

/// 5. A stream of requests: 10 tokens, 2 a second. Of 15 requests 100 ms apart, 12 pass; 200 ms apart, all do.
#[tokio::test]
async fn scenario_5_stream_passes_at_the_rate_of_the_refill() {
    for (apart_ms, expected) in [(100, 12), (200, 15)] {
        let (world, gate) = bucket(10, 2);
        let mut passed = Vec::new();
        for _ in 0..15 {
            passed.push(gate.check(CLIENT).await.unwrap().is_allowed());
            world.advance(Duration::from_millis(apart_ms));
        }
        let (first, rest) = passed.split_at(expected);
        assert!(first.iter().all(|passed| *passed), "{apart_ms} ms: {passed:?}");
        assert!(!rest.contains(&true), "{apart_ms} ms: {passed:?}");
    }
}

/// 6. A rate below one a second: 4 tokens, 4 a minute. After 4 at once, one passes every 15 s.
#[tokio::test]
async fn scenario_6_slow_refill_admits_one_request_every_15_seconds() {
    let world = World::redis();
    let gate = world.gate("tutorial", "4/min burst 4".parse().unwrap());
    assert_eq!(passes(&gate, CLIENT, 5).await, 4);
    for _ in 0..4 {
        world.advance(seconds(14));
        assert_eq!(passes(&gate, CLIENT, 1).await, 0);
        world.advance(seconds(1));
        assert_eq!(passes(&gate, CLIENT, 2).await, 1);
        assert_eq!(used_in_redis(&world, &gate), 4);
    }
}
