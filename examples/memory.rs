//! Measures the bytes of a key in Redis, for each algorithm.
//!
//!     cargo run --release --example memory
//!
//! Keys of 20 bytes under a namespace of 8 and a gate name of 5 bytes, measured with `MEMORY USAGE`. That
//! includes the name of the key, but not Redis's separate data about its expiry. Uses the Redis at
//! `TIDEGATE_REDIS_URL`, or starts one if that is not set.
#![allow(clippy::print_stdout, reason = "a program for the command line")]

use std::time::Duration;

use tidegate::{Acquired, Gate, Limiter, Quota, Rate};
use tidegate_testkit::Server;

type Failure = Box<dyn std::error::Error>;

const KEY: &str = "user:0123456789abcde";
const MINUTE: Duration = Duration::from_secs(60);

const HASHES: [(&str, Quota); 5] = [
    ("token bucket", Quota::token_bucket(1_000, Rate::per_minute(1_000))),
    ("leaky bucket", Quota::leaky_bucket(1_000, Rate::per_minute(1_000))),
    ("fixed window, from first hit", Quota::fixed_window(1_000, MINUTE)),
    ("fixed window, by the clock", Quota::fixed_window(1_000, MINUTE).aligned_to_clock()),
    ("sliding counter", Quota::sliding_counter(1_000, MINUTE)),
];
const LOG: Quota = Quota::sliding_log(1_000, MINUTE);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let server = Server::given_or_start()?;
    let mut connection = redis::Client::open(server.url())?.get_multiplexed_async_connection().await?;
    // A random namespace, as long as the default one.
    let namespace = format!("mem-{:04x}", rand::random::<u16>());
    let limiter = || {
        let builder = Limiter::builder().url(server.url()).namespace(&namespace);
        builder.deadline(Duration::from_secs(5)).build()
    };
    let processes = (0..100).map(|_| limiter()).collect::<Result<Vec<Limiter>, _>>()?;
    let limiter = &processes[0];

    println!("| algorithm | bytes per key |");
    println!("| --- | ---: |");
    for (title, quota) in HASHES {
        let gate = limiter.gate("login", quota);
        // One check at a time, so that a bucket's level has a fraction, as in production.
        for _ in 0..3 {
            assert!(gate.check(KEY).await?.is_allowed(), "denied a check although the limit admits all");
        }
        let bytes = bytes(&gate, &mut connection).await?;
        println!("| {title} | {bytes} |");
    }
    let gate = limiter.gate("login", LOG);
    for entries in [1, 10, 100, 1_000] {
        for decision in gate.check_many(vec![KEY; entries]).await {
            assert!(decision?.is_allowed(), "denied a check although the limit admits all");
        }
        let bytes = bytes(&gate, &mut connection).await?;
        println!("| sliding log, entries: {entries} | {bytes} ({} per entry) |", bytes / entries);
    }
    for count in [1, 10, 100] {
        let mut held = Vec::new();
        for process in &processes[..count] {
            match process.gate("login", Quota::in_flight(1_000)).acquire(KEY).await? {
                Acquired::Admitted(permit, _) => held.push(permit),
                Acquired::Denied(_) => return Err("denied a permit although the limit admits all".into()),
            }
        }
        let bytes = bytes(&limiter.gate("login", Quota::in_flight(1_000)), &mut connection).await?;
        println!("| in-flight limit, processes: {count} | {bytes} ({} per process) |", bytes / count);
    }
    Ok(())
}

/// Returns the key's bytes, and resets it.
async fn bytes(gate: &Gate, connection: &mut redis::aio::MultiplexedConnection) -> Result<usize, Failure> {
    let mut usage = redis::cmd("MEMORY");
    usage.arg("USAGE").arg(gate.redis_key(KEY)?).arg("SAMPLES").arg(0);
    let bytes = usage.query_async(connection).await?;
    gate.reset(KEY).await?;
    Ok(bytes)
}
