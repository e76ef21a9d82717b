//! Measures the scripts of reservations without a client, beside plain groups and a script written by hand.

use serde_json::Value as Json;
use tidegate::algorithm::{GROUP, RESERVE, SETTLE};
use tidegate::{Quota, Rate};

use crate::Failure;
use crate::script_cases::{self, Call, Subject, Text};
use crate::server::Target;

/// Groups per call of the wide cases.
const WIDTH: u64 = 32;
const LIMIT: u64 = 1_000_000;
const TTL_US: u64 = 60_000_000;
/// Units that each group takes of its two keys, and those that it uses.
const UNITS: [u64; 2] = [7, 9];
const ACTUAL: [u64; 2] = [3, 4];

const BY_HAND: &str = include_str!("holds/string_keys.lua");

pub(crate) fn run(target: &Target, rounds: usize, calls: u64) -> Result<Vec<Json>, Failure> {
    script_cases::run(target, rounds, calls, subjects(), |_| Ok(()))
}

/// Settles follow the reservations of the same numbers.
fn subjects() -> Vec<Subject> {
    let of_width = |case, width| {
        let subject = |name, script, fill| Subject::new(case, name, script, width, fill);
        [
            subject("plain group of two token buckets", Text::Of(&GROUP), plain),
            subject("take of keys with holds, none open", Text::Of(&RESERVE), |call| reserve(call, "")),
            subject("reserve (keep)", Text::Of(&RESERVE), |call| reserve(call, "keep")),
            subject("settle (keep)", Text::Of(&SETTLE), |call| settle(call, "keep")),
            subject("reserve (back)", Text::Of(&RESERVE), |call| reserve(call, "back")),
            subject("settle (back)", Text::Of(&SETTLE), |call| settle(call, "back")),
            subject("by hand: reserve", Text::ByHand(BY_HAND), |call| by_hand(call, "reserve")),
            subject("by hand: settle", Text::ByHand(BY_HAND), |call| by_hand(call, "settle")),
        ]
    };
    of_width("32 groups per call", WIDTH).into_iter().chain(of_width("1 group per call", 1)).collect()
}

fn quota() -> Quota {
    Quota::token_bucket(LIMIT, Rate::per_second(LIMIT))
}

/// Returns the kind of a key. Each width and each `what` has keys of its own.
fn kinds(call: &Call<'_>, what: &str) -> [String; 4] {
    ["input", "input.holds", "output", "output.holds"].map(|kind| format!("{kind}{}{what}", call.width))
}

fn append_quota(call: &mut Call<'_>) {
    call.command.arg(1).arg("token_bucket").arg(&quota().kind().args());
}

fn plain(call: &mut Call<'_>) {
    let [input, _, output, _] = kinds(call, "plain");
    call.keys(&[&input, &output], &[]);
    append_quota(call);
    for _ in call.numbers() {
        call.command.arg(1).arg(2);
        UNITS.iter().for_each(|units| {
            call.command.arg(1).arg(units).arg("");
        });
    }
}

fn reserve(call: &mut Call<'_>, what: &str) {
    let kinds = kinds(call, what);
    call.keys(&kinds.each_ref().map(String::as_str), &[]);
    append_quota(call);
    for number in call.numbers() {
        let id = if what.is_empty() { String::new() } else { id(number) };
        call.command.arg(1).arg(2).arg(id).arg(TTL_US).arg(what);
        UNITS.iter().for_each(|units| {
            call.command.arg(1).arg(units).arg("").arg(1);
        });
    }
}

fn settle(call: &mut Call<'_>, what: &str) {
    let kinds = kinds(call, what);
    call.keys(&kinds.each_ref().map(String::as_str), &[]);
    append_quota(call);
    for number in call.numbers() {
        for (units, actual) in UNITS.iter().zip(ACTUAL) {
            call.command.arg(1).arg(id(number)).arg(units).arg(TTL_US).arg(what).arg(actual);
        }
    }
}

fn by_hand(call: &mut Call<'_>, verb: &str) {
    let [input, _, output, _] = kinds(call, "hand");
    call.keys(&[&input, &output], &[]);
    call.command.arg(verb).arg(LIMIT).arg(TTL_US / 1_000);
    for number in call.numbers() {
        call.command.arg(id(number)).arg(&UNITS).arg(&ACTUAL);
    }
}

/// Returns an id of 16 letters, as clients make them.
fn id(number: u64) -> String {
    format!("{number:016}")
}
