//! How often a sliding counter decides otherwise than an exact log. Needs no
//! Redis: both are the references that the scripts are held against.
//!
//!     cargo run --release --example accuracy > docs/accuracy.md

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

use tidegate::Quota;
use tidegate::internals::{Item, Record, take};

const SEED: u64 = 42;
const WINDOW_US: u64 = 3_600_000_000;
const LIMITS: [u64; 5] = [1, 10, 100, 1_000, 10_000];
const LOADS: [f64; 5] = [0.5, 0.9, 1.0, 1.1, 2.0];
/// Of each cell, whichever is longer.
const LEAST_REQUESTS: f64 = 200_000.0;
const LEAST_WINDOWS: f64 = 20.0;

#[derive(Clone, Copy)]
enum Arrivals {
    Poisson,
    Edge,
    Zipf,
}

impl Arrivals {
    fn title(self) -> &'static str {
        match self {
            Self::Poisson => "Poisson: one key, asked at random",
            Self::Edge => {
                "Bursts: one key, all asked within the twentieth of a window about the instant at which the clock's window ends"
            }
            Self::Zipf => {
                "Zipf: ten keys, asked at random, the n-th a n-th as often as the first; the load is that of the average key"
            }
        }
    }

    fn keys(self) -> usize {
        if matches!(self, Self::Zipf) { 10 } else { 1 }
    }
}

fn main() -> std::io::Result<()> {
    let mut page = head();
    for arrivals in [Arrivals::Poisson, Arrivals::Edge, Arrivals::Zipf] {
        // Writing to a String cannot fail.
        let _ = write!(page, "\n## {}\n\n| limit |", arrivals.title());
        LOADS.iter().for_each(|load| _ = write!(page, " load {load} |"));
        page.push_str("\n| ---: |");
        page.push_str(&" ---: |".repeat(LOADS.len()));
        for limit in LIMITS {
            let _ = write!(page, "\n| {limit} |");
            for load in LOADS {
                let wrong = compare(arrivals, limit, load);
                let _ = write!(
                    page,
                    " {} / {} |",
                    percent(wrong.allowed, wrong.of),
                    percent(wrong.denied, wrong.of)
                );
            }
        }
        page.push('\n');
    }
    std::io::stdout().write_all(page.as_bytes())
}

fn head() -> String {
    format!(
        "\
# Accuracy of the sliding counter

Made by `cargo run --release --example accuracy > docs/accuracy.md`, seed {SEED}, window one hour; each cell is of about
{LEAST_REQUESTS} requests of one unit, or {LEAST_WINDOWS} windows if that is more.

A cell is wrongly allowed / wrongly denied: the share of all requests, in percent, that the sliding counter allowed and an
exact sliding log, fed the same arrivals, denied, and the share that the counter denied and the log allowed. Load is what
was asked for in a window, in multiples of the limit: well below it hardly any decision is close, so few can be wrong; at
and above it most are, and as the two then admit different requests, allowed minus denied is what the counter admitted more
in all.
"
    )
}

fn percent(part: u64, of: u64) -> String {
    format!("{:.3}", 100.0 * part as f64 / of as f64)
}

#[derive(Default)]
struct Wrong {
    allowed: u64,
    denied: u64,
    of: u64,
}

fn compare(arrivals: Arrivals, limit: u64, load: f64) -> Wrong {
    let window = Duration::from_micros(WINDOW_US);
    let counter = Quota::sliding_counter(limit, window);
    let log = Quota::sliding_log(limit, window);
    let mut records = vec![(Record::default(), Record::default()); arrivals.keys()];

    let per_window = limit as f64 * load * arrivals.keys() as f64;
    let windows = LEAST_WINDOWS.max((LEAST_REQUESTS / per_window).ceil());
    let mut random = Random(SEED);
    let mut wrong = Wrong::default();
    let mut time = 1.0;
    while time < windows {
        let key = match arrivals {
            Arrivals::Zipf => random.zipf(arrivals.keys()),
            _ => 0,
        };
        let at = match arrivals {
            Arrivals::Edge => time.round() + (time - time.round()) / 20.0,
            _ => time,
        };
        let now = (at * WINDOW_US as f64) as u64;
        let (counted, logged) = &mut records[key];
        match (admits(&counter, counted, now), admits(&log, logged, now)) {
            (true, false) => wrong.allowed += 1,
            (false, true) => wrong.denied += 1,
            _ => {}
        }
        wrong.of += 1;
        time += -random.unit().ln() / per_window;
    }
    wrong
}

fn admits(quota: &Quota, record: &mut Record, now: u64) -> bool {
    take(&mut [Item { quota, record, cost: 1, max_delay: None }], 1, now).0 == 1
}

/// SplitMix64: the same numbers from the same seed, with any version of any crate.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Above 0, up to 1.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    fn zipf(&mut self, keys: usize) -> usize {
        let weight = |key: usize| 1.0 / (key + 1) as f64;
        let mut left = self.unit() * (0..keys).map(weight).sum::<f64>();
        (0..keys - 1)
            .find(|&key| {
                left -= weight(key);
                left <= 0.0
            })
            .unwrap_or(keys - 1)
    }
}
