//! The table of `docs/reference/faults.md`.

const PAGE: &str = include_str!("../../docs/reference/faults.md");

pub const COLUMNS: [&str; 8] = [
    "fault",
    "check sent",
    "refund sent",
    "connection",
    "breaker",
    "error contains",
    "error predicates",
    "failure policy",
];

pub type Row = [String; COLUMNS.len()];

/// The column whose cells are only a part of the measured text.
const ERROR_TEXT: usize = 5;

/// Returns the rows of the table, without its head.
pub fn rows() -> Vec<Row> {
    let lines: Vec<Row> = PAGE.lines().filter_map(cells).collect();
    assert_eq!(lines[0], COLUMNS, "the head of the table");
    lines.into_iter().skip(2).collect()
}

fn cells(line: &str) -> Option<Row> {
    let line = line.strip_prefix("| ")?.strip_suffix(" |")?;
    let cells: Vec<String> = line.split(" | ").map(|cell| cell.trim().replace('`', "")).collect();
    Some(cells.try_into().unwrap_or_else(|cells| panic!("not {} cells: {cells:?}", COLUMNS.len())))
}

pub fn assert_holds(written: &Row, measured: &Row) {
    for (index, column) in COLUMNS.iter().enumerate() {
        let (documented, cell) = (&written[index], &measured[index]);
        let holds = if index == ERROR_TEXT { cell.contains(&**documented) } else { cell == documented };
        assert!(
            holds,
            "{column}: measured `{cell}`, but docs/reference/faults.md has `{documented}`; the row: {measured:?}"
        );
    }
}
