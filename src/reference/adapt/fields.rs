//! The fields of an adaptive limit, as the script stores and replies them.

use super::Adaptation;

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

/// # The numbers of the fields
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
