//! Measures the scripts of in-flight limits without a client, beside the token bucket and a script written by
//! hand.

use serde_json::Value as Json;
use tidegate::algorithm::{ACQUIRE_ALL, GROUP};
use tidegate::script::PERMIT_LEASE;
use tidegate::{Quota, Rate};

use crate::Failure;
use crate::script_cases::{self, Call, Subject, Text};
use crate::server::Target;
use crate::subjects::RUN;

/// Keys and groups per call of the wide cases.
const WIDTH: u64 = 64;
const GROUPS: u64 = 32;
/// Acquires that one message merges.
const MERGED: u64 = 300;
const LIMIT: u64 = 1_000_000;
const HOLDER: &str = "bench-1/60000";
/// The last time that a lease may end: the scripts use the end that Redis has stored.
const KNOWN_END: u64 = (1 << 53) - 1;

const SORTED_SET: &str = include_str!("permits/sorted_set.lua");

/// The case and the subject, its script, keys or groups per call, and the function that adds them to a call.
type Case = (&'static str, &'static str, Text, u64, fn(&mut Call<'_>));

pub(crate) fn run(target: &Target, rounds: usize, calls: u64) -> Result<Vec<Json>, Failure> {
    script_cases::run(target, rounds, calls, subjects(), |connection| {
        let mut open = redis::cmd("EVAL");
        open.arg(PERMIT_LEASE.text).arg(1).arg(holders()).arg("open").arg(HOLDER);
        Ok(open.exec(connection)?)
    })
}

fn subjects() -> Vec<Subject> {
    let of = Text::Of;
    let by_hand_text = || Text::ByHand(SORTED_SET);
    let bucket = || of(&bucket_quota().kind().definition().scripts.take);
    let acquire = || of(&in_flight().kind().definition().scripts.take);
    let cases: [Case; 13] = [
        ("1 key per call", "token bucket", bucket(), 1, bucket_keys),
        ("1 key per call", "in flight", acquire(), 1, permits),
        ("1 key per call", "sorted set by hand", by_hand_text(), 1, |call| by_hand(call, 1)),
        ("64 keys per call", "token bucket", bucket(), WIDTH, bucket_keys),
        ("64 keys per call", "in flight", acquire(), WIDTH, permits),
        ("64 keys per call", "sorted set by hand", by_hand_text(), WIDTH, |call| by_hand(call, 1)),
        ("300 merged acquires", "token bucket", bucket(), 1, |call| {
            bucket_keys(call);
            call.command.arg(MERGED).arg(1).arg("");
        }),
        ("300 merged acquires", "in flight", acquire(), 1, |call| {
            permits(call);
            call.command.arg(MERGED).arg(1);
        }),
        ("300 merged acquires", "sorted set by hand", by_hand_text(), 1, |call| by_hand(call, MERGED)),
        ("32 groups per call", "two token buckets", of(&GROUP), GROUPS, two_buckets),
        ("32 groups per call", "token bucket + in flight", of(&ACQUIRE_ALL), GROUPS, bucket_and_permit),
        ("1 group per call", "two token buckets", of(&GROUP), 1, two_buckets),
        ("1 group per call", "token bucket + in flight", of(&ACQUIRE_ALL), 1, bucket_and_permit),
    ];
    cases
        .into_iter()
        .map(|(case, name, script, width, fill)| Subject::new(case, name, script, width, fill))
        .collect()
}

fn bucket_quota() -> Quota {
    Quota::token_bucket(LIMIT, Rate::per_second(LIMIT))
}

fn in_flight() -> Quota {
    Quota::in_flight(LIMIT)
}

fn holders() -> String {
    format!("{}:1:holders", *RUN)
}

fn bucket_keys(call: &mut Call<'_>) {
    call.keys(&[&format!("bucket{}:token_bucket", call.width)], &[]);
    call.command.arg(&bucket_quota().kind().args());
}

/// Each message releases the unit of the previous one, and acquires another.
fn permits(call: &mut Call<'_>) {
    call.keys(&[&format!("permits{}:in_flight", call.width)], &[holders()]);
    call.command.arg(HOLDER).arg(KNOWN_END).arg(LIMIT);
    for number in call.numbers() {
        call.command.arg(number + 1).arg(0);
    }
}

fn by_hand(call: &mut Call<'_>, members: u64) {
    call.keys(&[&format!("sorted_set{}.{members}", call.width)], &[]);
    call.command.arg(u64::MAX >> 12).arg(100_000).arg(members);
    for number in call.numbers() {
        for member in 0..members {
            call.command.arg(format!("{number}.{member}"));
        }
    }
}

fn two_buckets(call: &mut Call<'_>) {
    call.keys(&["first", "second"], &[]);
    call.command.arg(1).arg("token_bucket").arg(&bucket_quota().kind().args());
    for _ in call.numbers() {
        call.command.arg(1).arg(2);
        call.command.arg(1).arg(1).arg("").arg(1).arg(1).arg("");
    }
}

fn bucket_and_permit(call: &mut Call<'_>) {
    let kinds = [format!("mixed_rate{}", call.width), format!("mixed{}", call.width)];
    call.keys(&[&kinds[0], &kinds[1]], &[holders()]);
    call.command.arg(HOLDER).arg(KNOWN_END).arg(2);
    call.command.arg("token_bucket").arg(&bucket_quota().kind().args());
    call.command.arg("in_flight").arg(&in_flight().kind().args());
    for number in call.numbers() {
        call.command.arg(1).arg(2);
        call.command.arg(1).arg(1).arg("").arg(2).arg(1).arg(number + 1).arg(0);
    }
}
