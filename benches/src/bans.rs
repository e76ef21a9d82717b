//! Measures checks of gates with a ban without a client, beside the same checks of gates without one.

use serde_json::Value as Json;
use tidegate::algorithm::{BAN, GROUP};
use tidegate::{Quota, Rate};

use crate::Failure;
use crate::script_cases::{self, Call, Subject, Text};
use crate::server::Target;

/// Keys per call.
const WIDTH: u64 = 64;
/// A limit that no round reaches.
const WIDE: u64 = 1_000_000_000;
const DAY_US: u64 = 86_400_000_000;
/// No round reaches a ban.
const AFTER: u64 = 1_000_000_000;

pub(crate) fn run(target: &Target, rounds: usize, calls: u64) -> Result<Vec<Json>, Failure> {
    script_cases::run(target, rounds, calls, subjects(), |_| Ok(()))
}

/// The calls of a case admit or deny every check, apart from the one check of each key that uses up a limit of 1 in the
/// first round.
fn subjects() -> Vec<Subject> {
    let mut subjects = Vec::new();
    let mut add = |case, name, script, fill| subjects.push(Subject::new(case, name, script, WIDTH, fill));
    add("bucket, admitted", "take", take_of(bucket(WIDE)), |call| take(call, "bw", bucket(WIDE)));
    add("bucket, admitted", "group", Text::Of(&GROUP), |call| group(call, "bgw", bucket(WIDE)));
    add("bucket, admitted", "ban", Text::Of(&BAN), |call| ban(call, "bbw", bucket(WIDE), DAY_US));
    add("bucket, denied", "take", take_of(bucket(1)), |call| take(call, "b", bucket(1)));
    add("bucket, denied", "group", Text::Of(&GROUP), |call| group(call, "bg", bucket(1)));
    add("bucket, denied", "ban, further denial", Text::Of(&BAN), |call| ban(call, "bb", bucket(1), DAY_US));
    add("bucket, denied", "ban, first denial", Text::Of(&BAN), |call| ban(call, "bbf", bucket(1), 1_000));
    add("window, admitted", "take", take_of(window(WIDE)), |call| take(call, "ww", window(WIDE)));
    add("window, admitted", "group", Text::Of(&GROUP), |call| group(call, "wgw", window(WIDE)));
    add("window, admitted", "ban", Text::Of(&BAN), |call| ban(call, "wbw", window(WIDE), DAY_US));
    add("window, denied", "take", take_of(window(1)), |call| take(call, "w", window(1)));
    add("window, denied", "group", Text::Of(&GROUP), |call| group(call, "wg", window(1)));
    add("window, denied", "ban, further denial", Text::Of(&BAN), |call| ban(call, "wb", window(1), DAY_US));
    add("window, denied", "ban, first denial", Text::Of(&BAN), |call| ban(call, "wbf", window(1), 1_000));
    subjects
}

fn bucket(limit: u64) -> Quota {
    Quota::token_bucket(limit, Rate::per_day(limit))
}

fn window(limit: u64) -> Quota {
    Quota::fixed_window(limit, std::time::Duration::from_micros(DAY_US))
}

fn take_of(quota: Quota) -> Text {
    Text::Of(&quota.kind().definition().scripts.take)
}

fn take(call: &mut Call<'_>, kind: &str, quota: Quota) {
    call.keys(&[kind], &[]);
    call.command.arg(&quota.kind().args()).arg(1).arg(1).arg("");
}

fn group(call: &mut Call<'_>, kind: &str, quota: Quota) {
    call.keys(&[kind], &[]);
    append_quota(call, quota);
    for _ in call.numbers() {
        call.command.arg(1).arg(1).arg(1).arg(1).arg("");
    }
}

/// Denials count for `within_us`. If it is shorter than the time until the next check of a key, each is the first.
fn ban(call: &mut Call<'_>, kind: &str, quota: Quota, within_us: u64) {
    call.keys(&[kind, &format!("{kind}.denials")], &[]);
    append_quota(call, quota);
    call.command.arg(1).arg(AFTER).arg(within_us).arg(DAY_US);
    for _ in call.numbers() {
        call.command.arg(1).arg(1).arg(0).arg(1).arg(1).arg("").arg(1);
    }
}

fn append_quota(call: &mut Call<'_>, quota: Quota) {
    call.command.arg(1).arg(quota.kind().definition().name).arg(&quota.kind().args());
}
