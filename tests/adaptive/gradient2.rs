//! The algorithm of `Gradient2Limit` of Netflix's concurrency-limits, with its defaults, in windows of a second as
//! `WindowedLimit` makes them: for comparison.

use super::simulation::SECOND_US;

const MIN: f64 = 20.0;
const TOLERANCE: f64 = 1.5;
const SMOOTHING: f64 = 0.2;
const QUEUE: f64 = 4.0;
/// The number of windows over which the long-term latency is averaged.
const LONG: f64 = 600.0;
const WARM_UP: f64 = 10.0;

pub struct Gradient2 {
    limit: f64,
    max: f64,
    long_us: f64,
    windows: f64,
    ends_at_us: f64,
    sum_us: f64,
    samples: f64,
    peak: f64,
}

impl Gradient2 {
    pub fn new(max: f64) -> Self {
        Self {
            limit: MIN,
            max,
            long_us: 0.0,
            windows: 0.0,
            ends_at_us: SECOND_US,
            sum_us: 0.0,
            samples: 0.0,
            peak: 0.0,
        }
    }

    pub fn limit(&self) -> u64 {
        self.limit as u64
    }

    /// Counts an operation that ended. A rejected one has no latency.
    pub fn sample(&mut self, now_us: f64, latency_us: f64, in_flight: u64, is_rejected: bool) {
        self.peak = self.peak.max(in_flight as f64);
        if !is_rejected {
            self.sum_us += latency_us;
            self.samples += 1.0;
        }
        if now_us >= self.ends_at_us && self.samples >= 10.0 {
            self.update(self.sum_us / self.samples);
            (self.sum_us, self.samples, self.peak) = (0.0, 0.0, 0.0);
            self.ends_at_us = now_us + SECOND_US;
        }
    }

    fn update(&mut self, short_us: f64) {
        self.windows += 1.0;
        let factor = if self.windows <= WARM_UP { 1.0 / self.windows } else { 2.0 / (LONG + 1.0) };
        self.long_us += (short_us - self.long_us) * factor;
        let long_us = self.long_us;
        if long_us > 2.0 * short_us {
            self.long_us *= 0.95;
        }
        // Limited by the application.
        if self.peak < self.limit / 2.0 {
            return;
        }
        let gradient = (TOLERANCE * long_us / short_us).clamp(0.5, 1.0);
        let next = self.limit * gradient + QUEUE;
        self.limit = (self.limit * (1.0 - SMOOTHING) + next * SMOOTHING).clamp(MIN, self.max);
    }
}
