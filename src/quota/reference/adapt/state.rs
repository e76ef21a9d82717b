//! The state of an adaptive limit, as the script stores and replies it.

/// The names of the fields, as in Redis and in [`Adaptation::numbers`].
pub const FIELDS: [&str; 14] = [
    "limit",
    "baseline_us",
    "started_us",
    "operations",
    "busy_us",
    "overloads",
    "peak",
    "ended_ms",
    "squares",
    "resume",
    "lowest_us",
    "highest",
    "ceiling",
    "windows",
];

/// The adaptive limit of one key, and the observations of its window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adaptation {
    /// The limit, with its fraction.
    pub limit: f64,
    /// The latency without a queue, in µs; 0 before the first window ends.
    pub baseline_us: f64,
    /// When the window began, in µs since 1970.
    pub started_us: f64,
    /// The operations of the window.
    pub operations: f64,
    /// Their time in flight, in µs.
    pub busy_us: f64,
    /// The operations that were marked as overloaded.
    pub overloads: f64,
    /// The most units of the window that were wanted at one time.
    pub peak: f64,
    /// The times in flight of the operations, in ms, and their squares.
    pub ended_ms: f64,
    /// The squares of these times, in ms².
    pub squares: f64,
    /// The limit to return to after a probe; 0 without a probe.
    pub resume: f64,
    /// The lowest latency of the probe so far, in µs.
    pub lowest_us: f64,
    /// The highest limit since the last probe.
    pub highest: f64,
    /// The limit at the last overload, above which the limit grows slowly; 0 without one.
    pub ceiling: f64,
    /// The number of windows until the next probe.
    pub windows: f64,
}

impl Adaptation {
    /// Returns the numbers of the fields, in the order of [`FIELDS`].
    #[must_use]
    pub const fn numbers(&self) -> [f64; FIELDS.len()] {
        [
            self.limit,
            self.baseline_us,
            self.started_us,
            self.operations,
            self.busy_us,
            self.overloads,
            self.peak,
            self.ended_ms,
            self.squares,
            self.resume,
            self.lowest_us,
            self.highest,
            self.ceiling,
            self.windows,
        ]
    }

    /// Returns the state with these [numbers](Self::numbers).
    #[must_use]
    pub const fn of_numbers(numbers: [f64; FIELDS.len()]) -> Self {
        let [limit, baseline_us, started_us, operations, busy_us, overloads, peak, ..] = numbers;
        let [.., ended_ms, squares, resume, lowest_us, highest, ceiling, windows] = numbers;
        Self {
            limit,
            baseline_us,
            started_us,
            operations,
            busy_us,
            overloads,
            peak,
            ended_ms,
            squares,
            resume,
            lowest_us,
            highest,
            ceiling,
            windows,
        }
    }
}
