//! Charts over time, as paths of SVG. They contain only numbers; all text is escaped by the template.

use std::fmt::Write;

/// The height of the drawing. The style sheet scales it.
const HEIGHT: f64 = 100.0;

/// A chart: stacked bars, or lines.
#[derive(Debug)]
pub(super) struct Chart {
    pub(super) title: &'static str,
    /// The chart in a sentence, for readers that do not see it.
    pub(super) summary: String,
    pub(super) parts: Vec<Part>,
    pub(super) width: usize,
    pub(super) is_line: bool,
    /// The value at the top, and at half of the height.
    pub(super) top_label: String,
    pub(super) mid_label: String,
    pub(super) from_label: String,
    pub(super) to_label: String,
}

/// A series of a chart.
#[derive(Debug)]
pub(super) struct Part {
    /// Its class in the style sheet.
    pub(super) class: &'static str,
    pub(super) label: &'static str,
    pub(super) path: String,
}

/// The values of a series, oldest first. `None` is a gap.
pub(super) type SeriesValues = Vec<Option<f64>>;

/// A series, before it is drawn.
pub(super) struct Series {
    pub(super) class: &'static str,
    pub(super) label: &'static str,
    pub(super) values: SeriesValues,
}

/// The drawn series of a chart.
pub(super) struct Drawing {
    parts: Vec<Part>,
    width: usize,
    /// The value at the top.
    top: f64,
    is_line: bool,
}

impl Drawing {
    /// Draws bars, the first series at the bottom.
    pub(super) fn stacked(series: Vec<Series>) -> Self {
        let width = width(&series);
        let total = |at: usize| {
            series.iter().filter_map(|series| series.values.get(at).copied().flatten()).sum::<f64>()
        };
        let top = round_up((0..width).map(total).fold(0.0, f64::max));
        let mut below = vec![0.0; width];
        let parts = series.into_iter().map(|series| {
            let mut path = String::new();
            for (at, value) in series.values.iter().enumerate() {
                let value = value.unwrap_or(0.0);
                if value <= 0.0 {
                    continue;
                }
                let (bottom, height) = (HEIGHT * (1.0 - below[at] / top), HEIGHT * (value / top));
                // Writing to a String cannot fail.
                let _ = write!(path, "M{at} {}h.9v-{}h-.9z", number(bottom), number(height));
                below[at] += value;
            }
            Part { class: series.class, label: series.label, path }
        });
        Self { parts: parts.collect(), width, top, is_line: false }
    }

    /// Draws a line for each series.
    pub(super) fn lines(series: Vec<Series>) -> Self {
        let width = width(&series);
        let values = series.iter().flat_map(|series| series.values.iter().copied().flatten());
        let top = round_up(values.fold(0.0, f64::max));
        let parts = series.into_iter().map(|series| {
            let mut path = String::new();
            let mut is_gap = true;
            for (at, value) in series.values.iter().enumerate() {
                let Some(value) = value else {
                    is_gap = true;
                    continue;
                };
                let y = number(HEIGHT * (1.0 - value.max(0.0) / top));
                // A point without neighbors is a short line, so that it is visible.
                let _ = match is_gap {
                    true => write!(path, "M{at} {y}h.9"),
                    false => write!(path, "L{at} {y}"),
                };
                is_gap = false;
            }
            Part { class: series.class, label: series.label, path }
        });
        Self { parts: parts.collect(), width, top, is_line: true }
    }
}

impl Chart {
    /// `label` formats a value of the axis.
    pub(super) fn new(
        title: &'static str,
        summary: String,
        drawing: Drawing,
        label: impl Fn(f64) -> String,
    ) -> Self {
        let Drawing { parts, width, top, is_line } = drawing;
        Self {
            title,
            summary,
            parts,
            width: width.max(1),
            is_line,
            top_label: label(top),
            mid_label: label(top / 2.0),
            from_label: String::new(),
            to_label: String::new(),
        }
    }

    /// Sets the labels of the time axis.
    pub(super) fn between(mut self, from: impl Into<String>, to: impl Into<String>) -> Self {
        (self.from_label, self.to_label) = (from.into(), to.into());
        self
    }
}

fn width(series: &[Series]) -> usize {
    series.iter().map(|series| series.values.len()).max().unwrap_or(0)
}

/// Rounds up to a number whose half is short, too: 1, 2, 4, 6 or 8 times a power of ten. Of nothing, 1.
fn round_up(value: f64) -> f64 {
    if !value.is_finite() || value <= 1e-9 {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 4.0, 6.0, 8.0, 10.0].map(|step| step * power);
    steps.into_iter().find(|step| step.is_finite() && *step >= value * 0.999_999).unwrap_or(value)
}

/// Formats a coordinate with at most one decimal.
fn number(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(class: &'static str, values: &[Option<f64>]) -> Series {
        Series { class, label: class, values: values.to_vec() }
    }

    fn drawn(drawing: Drawing) -> Chart {
        Chart::new("t", String::new(), drawing, |value| value.to_string())
    }

    #[test]
    fn bars_are_stacked_and_scaled_to_a_round_number() {
        let allowed = series("allowed", &[Some(1.0), None, Some(0.0)]);
        let denied = series("denied", &[Some(3.0), None, Some(2.0)]);
        let chart = drawn(Drawing::stacked(vec![allowed, denied]));
        assert_eq!((&*chart.top_label, &*chart.mid_label, chart.width), ("4", "2", 3));
        let paths: Vec<&str> = chart.parts.iter().map(|part| &*part.path).collect();
        assert_eq!(paths, ["M0 100h.9v-25h-.9z", "M0 75h.9v-75h-.9zM2 100h.9v-50h-.9z"]);
    }

    #[test]
    fn lines_are_broken_at_gaps() {
        let p99 = series("p99", &[Some(1.0), Some(2.0), None, Some(0.5)]);
        let chart = drawn(Drawing::lines(vec![p99]));
        assert_eq!(chart.parts[0].path, "M0 50h.9L1 0M3 75h.9");
        assert!(chart.is_line);
    }

    #[test]
    fn empty_or_odd_series_are_drawn_without_a_panic() {
        for values in [&[][..], &[None], &[Some(0.0)], &[Some(-1.0)], &[Some(f64::MAX)]] {
            for chart in [
                drawn(Drawing::stacked(vec![series("a", values)])),
                drawn(Drawing::lines(vec![series("a", values)])),
            ] {
                assert!(!chart.parts[0].path.contains("NaN") && chart.width >= 1, "{chart:?}");
            }
        }
    }

    #[test]
    fn top_is_round() {
        assert_eq!(
            [0.0, 0.03, 1.0, 1.1, 4.9, 5.0, 51.0, 999.0].map(round_up),
            [1.0, 0.04, 1.0, 2.0, 6.0, 6.0, 60.0, 1000.0]
        );
    }
}
