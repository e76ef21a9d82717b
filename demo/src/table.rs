//! The table of results, redrawn in place on a terminal.

use std::io::{self, IsTerminal, Write, stdout};

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::Failure;
use crate::ceiling::ceiling;
use crate::instance::Report;
use crate::scenario::Scenario;

const HEAD: [&str; 8] =
    ["algorithm", "instances", "offered", "allowed", "ceiling", "over-admitted", "p50", "p99"];

/// The results of one scenario.
pub(crate) struct Row {
    scenario: Scenario,
    offered: u64,
    allowed: u64,
    ceiling: u64,
    pub(crate) over_admitted: u64,
    pub(crate) failed: u64,
    pub(crate) first_error: Option<String>,
    p50_us: u64,
    p99_us: u64,
    /// Allowed and denied checks of each instance.
    per_instance: Vec<(u64, u64)>,
}

impl Row {
    pub(crate) fn new(scenario: Scenario, reports: &[Report]) -> Result<Self, Failure> {
        let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
        let mut took = Histogram::<u64>::new(3)?;
        for &(us, count) in reports.iter().flat_map(|report| &report.took_us) {
            took.record_n(us, count)?;
        }
        let keys = reports.first().map_or(0, |report| report.instants_us.len());
        let ceilings = (0..keys).map(|key| {
            let instants = reports.iter().flat_map(|report| report.instants_us[key].iter().copied());
            ceiling(&scenario.quota, instants.collect())
        });
        let (allowed, ceiling) = (sum(|report| report.allowed), ceilings.sum());
        Ok(Self {
            scenario,
            offered: sum(|report| report.allowed + report.denied + report.failed),
            allowed,
            ceiling,
            over_admitted: allowed.saturating_sub(ceiling),
            failed: sum(|report| report.failed),
            first_error: reports.iter().find_map(|report| report.first_error.clone()),
            p50_us: took.value_at_quantile(0.5),
            p99_us: took.value_at_quantile(0.99),
            per_instance: reports.iter().map(|report| (report.allowed, report.denied)).collect(),
        })
    }

    fn cells(&self) -> [String; 8] {
        [
            self.scenario.title.to_owned(),
            self.per_instance.len().to_string(),
            self.offered.to_string(),
            self.allowed.to_string(),
            self.ceiling.to_string(),
            self.over_admitted.to_string(),
            format!("{} us", self.p50_us),
            format!("{} us", self.p99_us),
        ]
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "algorithm": self.scenario.name,
            "offered": self.offered,
            "allowed": self.allowed,
            "ceiling": self.ceiling,
            "over_admitted": self.over_admitted,
            "p50_us": self.p50_us,
            "p99_us": self.p99_us,
            "per_instance": self.per_instance.iter()
                .map(|(allowed, denied)| json!({ "allowed": allowed, "denied": denied }))
                .collect::<Vec<_>>(),
        })
    }
}

/// The table. It is printed once at the end; on a terminal it is also redrawn during the run.
pub(crate) struct Table {
    is_live: bool,
    /// Number of lines on the terminal that the next draw replaces.
    drawn: usize,
    titles: Vec<&'static str>,
    instances: usize,
    pub(crate) rows: Vec<Row>,
}

impl Table {
    pub(crate) fn new(titles: Vec<&'static str>, instances: usize) -> Self {
        Self { is_live: stdout().is_terminal(), drawn: 0, titles, instances, rows: Vec::new() }
    }

    /// Shows the row in progress.
    pub(crate) fn progress(&mut self, offered: u64, allowed: u64) -> io::Result<()> {
        if self.is_live { self.draw(Some((offered, allowed))) } else { Ok(()) }
    }

    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.draw(None)
    }

    fn draw(&mut self, in_progress: Option<(u64, u64)>) -> io::Result<()> {
        let mut lines = vec![HEAD.map(str::to_owned)];
        lines.extend(self.rows.iter().map(Row::cells));
        if let (Some((offered, allowed)), Some(title)) = (in_progress, self.titles.get(self.rows.len())) {
            let mut cells: [String; 8] = Default::default();
            cells[0] = (*title).to_owned();
            cells[1] = self.instances.to_string();
            cells[2] = offered.to_string();
            cells[3] = allowed.to_string();
            lines.push(cells);
        }
        let title_width = self.titles.iter().map(|title| title.len()).max().unwrap_or(0);
        let mut text = String::new();
        if self.drawn > 0 {
            // Moves to the first line of the previous draw, and clears from there.
            text += &format!("\x1b[{}A\x1b[J", self.drawn);
        }
        for line in &lines {
            text += &format!("{:title_width$}", line[0]);
            for (cell, head) in line.iter().zip(HEAD).skip(1) {
                text += &format!("  {cell:>0$}", head.len().max(8));
            }
            text += "\n";
        }
        self.drawn = lines.len();
        if in_progress.is_some() {
            // Disables wrapping meanwhile: the next draw could not replace wrapped lines.
            text = format!("\x1b[?7l{text}\x1b[?7h");
        }
        stdout().write_all(text.as_bytes())?;
        stdout().flush()
    }
}
