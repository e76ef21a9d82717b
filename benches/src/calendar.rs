//! Measures calendar windows without a client, beside other fixed windows.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value as Json;
use tidegate::Quota;
use tidegate::quota::Calendar;

use crate::Failure;
use crate::script_cases::{self, Call, Subject, Text};
use crate::server::Target;

/// Keys per call of the wide case.
const WIDTH: u64 = 64;
const LIMIT: u64 = 1_000_000_000;
const DAY: Duration = Duration::from_secs(86_400);

pub(crate) fn run(target: &Target, rounds: usize, calls: u64) -> Result<Vec<Json>, Failure> {
    script_cases::run(target, rounds, calls, subjects(), |_| Ok(()))
}

fn subjects() -> Vec<Subject> {
    let of_width = |case, width| {
        let scripts = &first_charge().kind().definition().scripts;
        let subject = |name, script, fill| Subject::new(case, name, Text::Of(script), width, fill);
        [
            subject("fixed window", &scripts.take, |call| window(call, "first", first_charge())),
            subject("fixed window by the clock", &scripts.take, |call| window(call, "clock", by_the_clock())),
            subject("calendar window", scripts.take.in_span(), |call| window(call, "month", month())),
        ]
    };
    of_width("1 key per call", 1).into_iter().chain(of_width("64 keys per call", WIDTH)).collect()
}

fn first_charge() -> Quota {
    Quota::fixed_window(LIMIT, DAY)
}

fn by_the_clock() -> Quota {
    first_charge().aligned_to_clock()
}

fn month() -> Quota {
    Quota::calendar_window(LIMIT, Calendar::MONTH)
}

/// Adds the keys and arguments of one check for each key, in the windows of now.
#[expect(clippy::disallowed_methods, reason = "no limiter tells the time of the server")]
fn window(call: &mut Call<'_>, kind: &str, quota: Quota) {
    let now_us = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64;
    call.keys(&[&format!("{kind}{}:fixed_window", call.width)], &[]);
    call.command.arg(&quota.kind().args_at(now_us));
    if let Some(calendar) = quota.calendar() {
        let window = calendar.window_at(now_us);
        call.command.arg(window.start).arg(window.end);
    }
}
