//! The scripts of replicated gates without a client: takes beside plain ones, flushes and applications.

use std::time::Duration;

use redis::{Connection, Pipeline};
use serde_json::{Value as Json, json};
use tidegate::regions::reference::gossip::Gossip;
use tidegate::regions::reference::{Batch, Cursor, Entry, Field, Mode, Verb};
use tidegate::regions::script::{Call as ScriptCall, FLUSH, Keys, TakeGroup, TakeItem, cursor_text};
use tidegate::{Quota, Rate};

use super::{REGIONS, number, table};
use crate::rounds::median;
use crate::script_cases::{self, Call, Subject, Text};
use crate::server::Target;
use crate::subjects::RUN;
use crate::{Failure, Options, main_server, progress};

/// Keys per call: the names of the cases, and the numbers.
const WIDTHS: [(&str, u64); 2] = [("1 key per call", 1), ("64 keys per call", 64)];
const LIMIT: u64 = 1_000_000;
const DAY: Duration = Duration::from_secs(86_400);
/// The most changes of a flush, and of an application.
const MOST: u64 = 128;
/// What waits in the outbox at a flush: with 500, 10,000 keys a second.
const OUTBOXES: [u64; 3] = [1, MOST, 500];

pub(super) fn run(options: &Options) -> Result<(String, Json), Failure> {
    let target = main_server()?;
    let (rounds, length) = options.rounds_and_length();
    // About as many keys as Redis handles in the time of a round.
    let calls = (length.measured.as_secs_f64() * 40_000.0) as u64;
    let mut subjects = takes()?;
    subjects.extend([1, MOST].map(apply).into_iter().collect::<Result<Vec<_>, _>>()?);
    let rows = script_cases::run(&target, rounds, calls, subjects, prepare)?;
    let flushes = OUTBOXES.map(|changes| flush_us(&target, rounds, calls / 2, changes));
    let flushes = flushes.into_iter().collect::<Result<Vec<f64>, _>>()?;
    progress("");
    target.clean()?;
    Ok((tables(&rows, &flushes), json!({ "scripts": rows, "flush_us_per_change": flushes })))
}

/// Empties the outbox, which nothing flushes, and sets the cursor that all applications expect and store.
fn prepare(connection: &mut Connection) -> Result<(), Failure> {
    redis::cmd("DEL").arg(keys().outbox).exec(connection)?;
    Ok(redis::cmd("SET").arg(keys().cursor("us")).arg(cursor_text(&cursor())).exec(connection)?)
}

fn keys() -> Keys {
    Keys::new(&format!("{}:1:regions", *RUN))
}

fn cursor() -> Cursor {
    Cursor { position: (1, (1, 0)), began: (0, 0) }
}

/// Wide limits, so that every check is admitted. The keys live as long as the run.
fn quotas(width: u64) -> [(&'static str, Quota); 5] {
    // A log holds about a dozen entries per key: with 1 key per call, each key has more checks per second.
    let log = if width == 1 { Duration::from_millis(10) } else { Duration::from_millis(200) };
    [
        ("token bucket", Quota::token_bucket(LIMIT, Rate::new(LIMIT, DAY))),
        ("leaky bucket", Quota::leaky_bucket(LIMIT, Rate::new(LIMIT, DAY))),
        ("fixed window by the clock", Quota::fixed_window(LIMIT, DAY).aligned_to_clock()),
        ("sliding log", Quota::sliding_log(LIMIT, log)),
        ("sliding counter", Quota::sliding_counter(LIMIT, Duration::from_secs(3_600))),
    ]
}

fn bucket() -> Result<Gossip, Failure> {
    Ok(Gossip::new(quotas(1)[0].1, REGIONS as u64)?)
}

/// Two subjects per case: first the plain take, which is the unit.
fn takes() -> Result<Vec<Subject>, Failure> {
    let mut subjects = Vec::new();
    for (at, width) in WIDTHS {
        for (name, quota) in quotas(width) {
            let case: &'static str = format!("{name}, {at}").leak();
            let kind = format!("{}{width}", quota.algorithm());
            let (states, replicated_states) = (format!("plain:{kind}"), format!("gossip/{kind}"));
            let plain = Text::Of(&quota.kind().definition().scripts.take);
            let fill = move |call: &mut Call<'_>| {
                call.keys(&[&states], &[]);
                call.command.arg(&quota.kind().args());
            };
            subjects.push(Subject::boxed(case, "plain", plain, width, Box::new(fill)));
            let gate = Gossip::new(quota, REGIONS as u64)?;
            let sample: Vec<String> = (0..width).map(|number| number.to_string()).collect();
            let script = Text::Of(take(&gate, &sample).script);
            let fill = move |call: &mut Call<'_>| {
                let names = call.numbers().map(|number| call.key(&replicated_states, number));
                append(call, take(&gate, &names.collect::<Vec<_>>()));
            };
            subjects.push(Subject::boxed(case, "replicated", script, width, Box::new(fill)));
        }
    }
    Ok(subjects)
}

/// Returns the call of a check of each key.
fn take(gate: &Gossip, names: &[String]) -> ScriptCall {
    let item = |key| TakeItem { gate, key, share: "", cost: 1, max_delay: None };
    let groups: Vec<_> = names.iter().map(|key| TakeGroup { n: 1, items: vec![item(key)] }).collect();
    keys().take(&groups, None)
}

/// Applications of this many charges of a peer each.
fn apply(width: u64) -> Result<Subject, Failure> {
    let case: &'static str = format!("apply {width}").leak();
    let gate = bucket()?;
    let call = move |names: Vec<String>| {
        let field = |key| Field { verb: Verb::Charge, mode: Mode::Gossip(gate), name: 0, key };
        let changes = names.into_iter().map(|key| (field(key), 1)).collect();
        let entries = vec![Entry { id: (2, 0), changes }];
        let (expected, next) = (Some(cursor()), cursor());
        let batch = Batch { expected, next, entries, read_us: 0, peer_us: 0, is_complete: true };
        keys().apply("us", &batch, 1 << 53)
    };
    let script = Text::Of(call(Vec::new()).script);
    let fill = move |filled: &mut Call<'_>| {
        let names = filled.numbers().map(|number| filled.key(&format!("gossip/apply{width}"), number));
        append(filled, call(names.collect()));
    };
    Ok(Subject::boxed(case, "apply", script, width, Box::new(fill)))
}

fn append(call: &mut Call<'_>, of: ScriptCall) {
    call.command.arg(of.keys.len()).arg(of.keys).arg(of.args);
}

/// Returns the µs of Redis per change, if flushes empty an outbox of this many. Median of rounds of `changes` in sum: the time
/// of filling outboxes and flushing them, less that of filling others.
fn flush_us(target: &Target, rounds: usize, changes: u64, outbox: u64) -> Result<f64, Failure> {
    let mut connection = redis::Client::open(target.url())?.get_connection()?;
    let keys = keys();
    redis::cmd("SCRIPT").arg("LOAD").arg(FLUSH.text).exec(&mut connection)?;
    let mode = bucket()?.quota.kind().args().map(|arg| arg.to_string()).join(",");
    let field = |number: u64| {
        (
            format!(
                "charge token_bucket,{mode},{},0 0 {}",
                3 * LIMIT,
                script_cases::key("gossip/flush", number)
            ),
            1,
        )
    };
    let fields: Vec<(String, u64)> = (0..outbox).map(field).collect();
    let flush = keys.flush(MOST as usize, 3_600_000_000, 100_000, 1);
    let times = (changes / outbox).max(1);
    let mut of_rounds = Vec::new();
    for round in 0..rounds {
        progress(&format!("regions: flushes, round {} of {rounds}", round + 1));
        let mut us = [0.0; 2];
        for (with_flush, us) in [true, false].into_iter().zip(&mut us) {
            let others: Vec<String> = (0..times).map(|number| format!("{}:{number}", keys.outbox)).collect();
            redis::cmd("DEL").arg(&keys.outbox).arg(&keys.stream).exec(&mut connection)?;
            let before = target.user_us()?;
            for other in &others {
                let mut calls = Pipeline::new();
                calls.cmd("HSET").arg(if with_flush { &keys.outbox } else { other }).arg(&fields).ignore();
                for _ in 0..if with_flush { outbox.div_ceil(MOST) } else { 0 } {
                    calls.cmd("EVALSHA").arg(flush.script.digest()).arg(flush.keys.len()).arg(&flush.keys);
                    calls.arg(&flush.args).ignore();
                }
                calls.exec(&mut connection)?;
            }
            *us = target.user_us()? - before;
            redis::cmd("UNLINK").arg(others).exec(&mut connection)?;
        }
        of_rounds.push((us[0] - us[1]) / (times * outbox) as f64);
    }
    Ok(median(of_rounds))
}

fn tables(rows: &[Json], flushes: &[f64]) -> String {
    let of = |case: &str, script: &str| {
        let mut rows = rows.iter().filter(|row| row["case"] == case && row["script"] == script);
        rows.next().unwrap_or(&Json::Null)
    };
    let takes = quotas(1).map(|(name, _)| {
        let cells = WIDTHS.iter().flat_map(|(at, _)| {
            let case = format!("{name}, {at}");
            let (plain, replicated) = (of(&case, "plain"), of(&case, "replicated"));
            [number(plain, "/us"), number(replicated, "/us"), 1.0 / number(replicated, "/ratio")]
        });
        std::iter::once(name.to_owned()).chain(cells.map(|cell| format!("{cell:.2}"))).collect()
    });
    let applied = [1, MOST].map(|width| {
        (format!("apply {width} in a call"), number(of(&format!("apply {width}"), "apply"), "/us"))
    });
    let changes = OUTBOXES.iter().zip(flushes);
    let changes = changes.map(|(outbox, us)| (format!("flush an outbox of {outbox}"), *us)).chain(applied);
    let changes = changes.map(|(name, us)| vec![name, format!("{us:.2}")]);
    let head = ["µs of Redis per check", "1 key per call: plain", "replicated", "ratio"];
    let head = [&head[..], &["64 keys per call: plain", "replicated", "ratio"]].concat();
    let of_changes = table(&["token bucket", "µs of Redis per change"], changes);
    format!("{}\n{of_changes}", table(&head, takes))
}
