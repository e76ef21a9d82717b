//! The outcome of a check in each fault. Tests each cell of the table in `docs/reference/faults.md`.

mod all;
mod any_reply;
mod measure;
mod scene;
mod table;

use self::all::FAULTS;

macro_rules! faults {
    ($($test:ident: $name:literal;)+) => {
        $(#[tokio::test] async fn $test() { assert_row_holds($name).await; })+

        #[test]
        fn faults_rows_and_tests_match() {
            let faults: Vec<&str> = FAULTS.iter().map(|fault| fault.name).collect();
            let rows: Vec<String> = table::rows().into_iter().map(|[name, ..]| name).collect();
            assert_eq!(faults, rows, "faults, and rows of docs/reference/faults.md");
            assert_eq!(faults, [$($name),+], "faults, and tests");
        }
    };
}

faults! {
    oom: "OOM";
    readonly: "READONLY";
    masterdown: "MASTERDOWN";
    loading: "LOADING";
    busy: "BUSY";
    noreplicas: "NOREPLICAS";
    noperm: "NOPERM";
    wrongpass: "WRONGPASS";
    noauth: "NOAUTH";
    wrongtype: "WRONGTYPE";
    garbage: "garbage in a field";
    noscript: "NOSCRIPT";
    clusterdown: "CLUSTERDOWN";
    tryagain: "TRYAGAIN";
    outside_of_each_window: "clock outside of each calendar window";
    another_error: "any other error";
    refused: "connection refused";
    silent_at_first: "black hole, from the first byte";
    silent_later: "black hole, during a call";
    half_closed: "half-closed, during a call";
    cut: "cut off, during a call";
    nil: "reply: nil";
    empty: "reply: empty";
    too_short: "reply: too short";
    nested: "reply: nested";
    error_inside: "reply: an error inside an array";
    text: "reply: text instead of a number";
    negative: "reply: a number below 0";
    too_large: "reply: a number beyond 64 bits";
    impossible: "reply: impossible numbers";
    only_a_string: "reply: only a string";
    not_resp: "reply: not RESP";
    endless: "reply: endless";
}

async fn assert_row_holds(name: &str) {
    let fault = FAULTS.iter().find(|fault| fault.name == name).unwrap();
    let measured = measure::row(fault).await;
    let written = table::rows().into_iter().find(|row| row[0] == name);
    let written = written.unwrap_or_else(|| panic!("no row in docs/reference/faults.md; add {measured:?}"));
    table::assert_holds(&written, &measured);
}
