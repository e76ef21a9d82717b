//! What becomes of an ask in each fault is what `docs/faults.md` says, cell by cell.

mod all;
mod any_reply;
mod measure;
mod scene;
mod table;

use self::all::FAULTS;

macro_rules! faults {
    ($($test:ident: $name:literal;)+) => {
        $(#[tokio::test] async fn $test() { holds($name).await; })+

        #[test]
        fn each_fault_has_a_row_and_a_test_and_each_row_is_a_fault() {
            let made: Vec<&str> = FAULTS.iter().map(|fault| fault.name).collect();
            let written: Vec<String> = table::rows().into_iter().map(|[name, ..]| name).collect();
            assert_eq!(made, written, "faults, and rows of docs/faults.md");
            assert_eq!(made, [$($name),+], "faults, and tests");
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
    error_inside: "reply: an error inside a row";
    text: "reply: a text where a number should be";
    negative: "reply: a number below 0";
    too_large: "reply: a number beyond 64 bits";
    impossible: "reply: numbers that cannot be";
    no_array: "reply: a text alone";
    not_resp: "reply: not RESP";
    endless: "reply: endless";
}

async fn holds(name: &str) {
    let fault = FAULTS.iter().find(|fault| fault.name == name).unwrap();
    let measured = measure::row(fault).await;
    let written = table::rows().into_iter().find(|row| row[0] == name);
    let written = written.unwrap_or_else(|| panic!("no row in docs/faults.md, which should be {measured:?}"));
    table::assert_holds(&written, &measured);
}
