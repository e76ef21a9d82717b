//! The table of `docs/faults.md`.

const PAGE: &str = include_str!("../../docs/faults.md");

pub const COLUMNS: [&str; 8] = [
    "fault",
    "a take is sent",
    "a give-back is sent",
    "connection",
    "breaker",
    "the error holds",
    "true of the error",
    "failure policy",
];

pub type Row = [String; COLUMNS.len()];

/// Which column holds words of a text that is longer.
const WORDS: usize = 5;

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
        let (written, measured) = (&written[index], &measured[index]);
        let holds = if index == WORDS { measured.contains(&**written) } else { measured == written };
        assert!(
            holds,
            "{column}: `{measured}`, where docs/faults.md says `{written}`; all of it: {measured:?}"
        );
    }
}
