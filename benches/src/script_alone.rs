//! Measures the script without a client: raw pipelined calls of 64 keys each over 4 connections, so that only
//! Redis's single thread limits them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use redis::{RedisResult, Value};

use crate::case::{Case, KEYS};
use crate::rounds::median;
use crate::script_cases::BOUND_US;
use crate::server::Target;
use crate::subjects::RUN;
use crate::{Failure, Length, progress};

/// Keys per call.
const WIDTH: usize = 64;
const CONNECTIONS: usize = 4;
/// Calls in flight per connection.
const DEPTH: usize = 4;
/// Distinct calls per connection.
const CALLS: usize = 400;

/// The smallest script that keeps a separate state for each key.
const BARE: &str = "for i = 1, #KEYS do
  redis.call('GET', KEYS[i])
  redis.call('SET', KEYS[i], ARGV[1], 'PX', ARGV[2])
end
return #KEYS";

/// The rates of both scripts in all rounds.
#[derive(Debug, Default)]
pub(crate) struct Scripts {
    pub(crate) ours: Vec<Rate>,
    pub(crate) bare: Vec<Rate>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Rate {
    pub(crate) keys_per_s: f64,
    pub(crate) keys_per_cpu_s: f64,
}

impl Scripts {
    pub(crate) fn ours_over_bare(&self) -> f64 {
        self.over(|rate| rate.keys_per_s)
    }

    pub(crate) fn ours_over_bare_by_cpu(&self) -> Option<f64> {
        let ratio = self.over(|rate| rate.keys_per_cpu_s);
        ratio.is_finite().then_some(ratio)
    }

    fn over(&self, of: fn(&Rate) -> f64) -> f64 {
        median(self.ours.iter().zip(&self.bare).map(|(a, b)| of(a) / of(b)).collect())
    }
}

pub(crate) fn run(target: &Target, rounds: usize, length: Length) -> Result<Scripts, Failure> {
    let mut scripts = Scripts::default();
    make_unlike(target)?;
    let (ours, bare) = (calls(target, take_text(), ours)?, calls(target, BARE, bare)?);
    for round in 0..rounds {
        for turn in 0..2 {
            progress(&format!("script alone: round {} of {rounds}", round + 1));
            if (round + turn) % 2 == 0 {
                scripts.ours.push(measure(target, length, &ours)?);
            } else {
                scripts.bare.push(measure(target, length, &bare)?);
            }
        }
    }
    progress("");
    Ok(scripts)
}

fn quota() -> tidegate::Quota {
    crate::subjects::tidegate_quota(Case::Unlike.limit())
}

fn take_text() -> &'static str {
    quota().kind().definition().scripts.take.text
}

/// Charges a different amount to each key, since the script formats equal levels only once.
fn make_unlike(target: &Target) -> Result<(), Failure> {
    let mut connection = redis::Client::open(target.url())?.get_connection()?;
    let keys: Vec<usize> = (0..KEYS).collect();
    for keys in keys.chunks(WIDTH) {
        let mut call = redis::cmd("EVAL");
        call.arg(take_text()).arg(keys.len());
        keys_and_quota(&mut call, keys);
        for _ in keys {
            call.arg(1).arg(fastrand::u32(1..10_000)).arg("");
        }
        call.arg(BOUND_US);
        call.query::<Value>(&mut connection)?;
    }
    Ok(())
}

/// Adds the arguments that `take.lua` expects: the quota, then for all keys 1 check of cost 1 with any delay.
fn ours(call: &mut redis::Cmd, keys: &[usize]) {
    keys_and_quota(call, keys);
    call.arg(1).arg(1).arg("").arg(BOUND_US);
}

fn keys_and_quota(call: &mut redis::Cmd, keys: &[usize]) {
    for key in keys {
        call.arg(format!("{}:2:script:token_bucket:user:{key}", *RUN));
    }
    for number in quota().kind().args() {
        call.arg(number);
    }
}

/// Adds a value as long as a level with its time.
fn bare(call: &mut redis::Cmd, keys: &[usize]) {
    for key in keys {
        call.arg(format!("{}:2:script:get_and_set_p:user:{key}", *RUN));
    }
    call.arg("740740740/60000000 at 1763680467812345").arg(60_000);
}

/// Builds the calls of every connection before the first round.
fn calls(target: &Target, text: &str, fill: fn(&mut redis::Cmd, &[usize])) -> Result<Vec<Vec<u8>>, Failure> {
    let mut connection = redis::Client::open(target.url())?.get_connection()?;
    let digest: String = redis::cmd("SCRIPT").arg("LOAD").arg(text).query(&mut connection)?;
    let call = || {
        let keys: Vec<usize> = (0..WIDTH).map(|_| fastrand::usize(..KEYS)).collect();
        let mut call = redis::cmd("EVALSHA");
        call.arg(&digest).arg(WIDTH);
        fill(&mut call, &keys);
        call.get_packed_command()
    };
    Ok((0..CONNECTIONS * CALLS).map(|_| call()).collect())
}

fn measure(target: &Target, length: Length, calls: &[Vec<u8>]) -> Result<Rate, Failure> {
    let client = redis::Client::open(target.url())?;
    let (done, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let send_all = &|calls: &[Vec<u8>]| -> Result<(), Failure> {
        let mut connection = client.get_connection()?;
        // Sends the next call as soon as a reply arrives, and repeats the calls. The driver must never be the
        // bottleneck.
        for (sent, call) in calls.iter().cycle().enumerate() {
            connection.send_packed_command(call)?;
            if sent >= DEPTH {
                check(connection.recv_response()?)?;
                done.fetch_add(WIDTH as u64, Ordering::Relaxed);
            }
            if over.load(Ordering::Relaxed) {
                break;
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = calls.chunks(CALLS).map(|calls| scope.spawn(move || send_all(calls))).collect();
        std::thread::sleep(length.warm);
        let before = target.begin();
        let (begun, done_before) = (Instant::now(), done.load(Ordering::Relaxed));
        std::thread::sleep(length.measured);
        let keys = (done.load(Ordering::Relaxed) - done_before) as f64;
        let seconds = begun.elapsed().as_secs_f64();
        let cost = before.and_then(|before| target.end(&before));
        over.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().map_err(|_| "a thread panicked")??;
        }
        Ok(Rate { keys_per_s: keys / seconds, keys_per_cpu_s: 1e6 * keys / cost?.cpu_us })
    })
}

/// Checks a reply. tidegate's script replies `{now, row…}`, where the row of a key that is not blocked and
/// admits all is its level. The bare script replies the number of keys.
fn check(reply: Value) -> RedisResult<()> {
    match reply {
        Value::Int(keys) if keys == WIDTH as i64 => Ok(()),
        Value::Array(row)
            if row.len() == 1 + WIDTH && row.iter().all(|level| matches!(level, Value::Int(0..))) =>
        {
            Ok(())
        }
        Value::ServerError(error) => Err(error.into()),
        other => Err((redis::ErrorKind::UnexpectedReturnType, "not an answer", format!("{other:?}")).into()),
    }
}
