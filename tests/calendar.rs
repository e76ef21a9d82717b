//! Windows of a calendar: the same as those that Python computes, in every store, and wherever the clocks of the
//! server and of this process differ. `lua_agrees_with_reference` and other properties run random sequences of them.

mod behaviour;
mod clocks;

use std::process::Command;

use tidegate::quota::Calendar;

/// Made by `windows.py 400 46 2024`: instants of the past, whose windows later zone data do not change.
const WINDOWS: &str = include_str!("calendar/windows.txt");

/// Asserts each line: a calendar, an instant, and the beginning and the end of its window, in seconds since 1970.
fn assert_windows(text: &str, source: &str) -> usize {
    let mut lines = 0;
    for line in text.lines() {
        let [calendar, times @ ..] = &line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let [instant, start, end] = [0, 1, 2].map(|at| times[at].parse::<u64>().unwrap() * 1_000_000);
        let parsed: Calendar = calendar.parse().unwrap();
        // The name of a zone may be an alias that the database writes in another way.
        assert_eq!(parsed.to_string(), **calendar, "{source}: {line}");
        for us in [instant, instant + 999_999] {
            assert_eq!(parsed.window_at(us), start..end, "{source}: {line}");
        }
        lines += 1;
    }
    lines
}

#[test]
fn windows_are_those_of_a_table_that_python_computed() {
    assert_eq!(assert_windows(WINDOWS, "windows.txt"), 400);
}

/// Skipped on a machine without Python 3.9: the table above remains.
#[test]
fn windows_of_10_000_random_instants_are_those_that_python_computes() {
    let has_zoneinfo = Command::new("python3").args(["-c", "import zoneinfo"]).output();
    if !has_zoneinfo.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: python3 with zoneinfo is missing");
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/calendar/windows.py");
    let seed = rand::random::<u32>().to_string();
    let output = Command::new("python3").args([script, "10000", &seed]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(assert_windows(&text, &format!("windows.py 10000 {seed}")), 10_000);
}
