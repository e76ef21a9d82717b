//! A chart: one bar per subject and case, in proportion to the fastest subject of the case.
//! Readable on light and dark backgrounds. It has only the cases that compare rates: not those bound by the
//! wait for one reply, and not denials. tidegate is shown once, on the first server.

use std::fmt::Write;

use super::{Report, thousands};
use crate::case::Case;
use crate::rounds::Row;
use crate::subjects::Kind;

const WIDTH: usize = 860;
const LABELS: usize = 330;
const BARS: usize = 420;
const LINE: usize = 22;

const STYLE: &str = "<style>
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600 }
.small { font-size: 11px; fill: #59636e }
.ours { fill: #0a7ea4 }
.by-hand { fill: #8c959f }
.peer { fill: #c3a36b }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc }
  .small { fill: #9198a1 }
  .ours { fill: #39b5dd }
  .by-hand { fill: #7d8590 }
  .peer { fill: #b08f52 }
}
</style>";

pub(crate) fn svg(report: &Report) -> String {
    let mut body = String::new();
    let mut y = 24;
    let mut legend = LABELS;
    for (class, title) in [("ours", "tidegate"), ("by-hand", "by hand"), ("peer", "other crates")] {
        let _ =
            writeln!(body, r#"<rect x="{legend}" y="{}" width="12" height="12" class="{class}"/>"#, y - 11);
        let _ = writeln!(body, r#"<text x="{}" y="{y}">{title}</text>"#, legend + 18);
        legend += 110;
    }
    let _ = writeln!(body, r#"<text x="{legend}" y="{y}" class="small">checks/s, medians</text>"#);
    y += LINE;
    for case in [Case::Unlike, Case::Zipf, Case::Hot, Case::Lease100k, Case::LeaseOne] {
        let is_shown = |row: &&Row| row.is_usable() && (row.is_main || row.info.kind == Kind::Peer);
        let of_case = report.rows.iter().filter(|row| row.case == case);
        let mut rows: Vec<&Row> = of_case.filter(is_shown).collect();
        rows.sort_by(|a, b| b.per_second().total_cmp(&a.per_second()));
        let Some(highest) = rows.first().map(|row| row.per_second()) else { continue };
        y += LINE / 2;
        let _ = writeln!(body, r#"<text x="8" y="{y}" class="title">{}</text>"#, escaped(case.title()));
        for row in rows {
            y += LINE;
            body += &bar(row, highest, y);
        }
        y += LINE;
    }
    let height = y;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\" aria-label=\"checks per second, case by case\">\n{STYLE}\n{body}</svg>\n"
    )
}

fn bar(row: &Row, highest: f64, y: usize) -> String {
    let class = match row.info.kind {
        Kind::Ours => "ours",
        Kind::ByHand => "by-hand",
        Kind::Peer => "peer",
    };
    let title = match row.info.title.strip_prefix("by hand: ") {
        Some(how) => how.split(',').next().unwrap_or_default(),
        None => row.info.title,
    };
    let server = if row.is_main { String::new() } else { format!(" ({})", row.server) };
    let width = (BARS as f64 * row.per_second() / highest).max(1.0);
    let label = LABELS - 8;
    let value = LABELS as f64 + width + 6.0;
    format!(
        "<text x=\"{label}\" y=\"{y}\" text-anchor=\"end\">{}</text>\n\
         <rect x=\"{LABELS}\" y=\"{}\" width=\"{width:.1}\" height=\"14\" rx=\"2\" class=\"{class}\"/>\n\
         <text x=\"{value:.1}\" y=\"{y}\" class=\"small\">{}</text>\n",
        escaped(&format!("{title}{server}")),
        y - 12,
        thousands(row.per_second()),
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
