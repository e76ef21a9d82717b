use std::collections::HashSet;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::*;

fn calendar(text: &str) -> Calendar {
    text.parse().unwrap()
}

fn micros(instant: &str) -> u64 {
    instant.parse::<Timestamp>().unwrap().as_microsecond() as u64
}

/// Asserts the window of an instant, and that it is the window of its first and of its last microsecond.
fn assert_window(text: &str, at: &str, expected: [&str; 2]) {
    let calendar = calendar(text);
    let window = calendar.window_at(micros(at));
    let shown = |us: u64| Timestamp::from_microsecond(us as i64).unwrap().to_string();
    assert_eq!([shown(window.start), shown(window.end)], expected, "{text} at {at}");
    assert_eq!(calendar.window_at(window.start), window, "{text}: its beginning");
    assert_eq!(calendar.window_at(window.end - 1), window, "{text}: its last microsecond");
    assert_eq!(calendar.window_at(window.end).start, window.end, "{text}: the next window");
    assert_eq!(calendar.window_at(window.start - 1).end, window.start, "{text}: the previous window");
}

#[test]
fn days_with_a_change_of_daylight_saving_time_last_23_and_25_hours() {
    let berlin = "day@Europe/Berlin";
    assert_window(berlin, "2026-03-29T12:00:00Z", ["2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"]);
    assert_window(berlin, "2026-10-25T12:00:00Z", ["2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"]);
    // A change of half an hour.
    assert_window(
        "day@Australia/Lord_Howe",
        "2026-04-05T00:00:00Z",
        ["2026-04-04T13:00:00Z", "2026-04-05T13:30:00Z"],
    );
}

#[test]
fn zones_with_half_and_quarter_hours_begin_their_days_there() {
    assert_window(
        "day@Asia/Kolkata",
        "2026-07-01T00:00:00Z",
        ["2026-06-30T18:30:00Z", "2026-07-01T18:30:00Z"],
    );
    assert_window(
        "day@Asia/Kathmandu",
        "2026-07-01T00:00:00Z",
        ["2026-06-30T18:15:00Z", "2026-07-01T18:15:00Z"],
    );
}

#[test]
fn day_without_midnight_begins_with_its_first_instant() {
    // Clocks went from 00:00 to 01:00.
    let paulo = "day@America/Sao_Paulo";
    assert_window(paulo, "2018-11-04T12:00:00Z", ["2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"]);
    assert_window(
        "day@Asia/Beirut",
        "2022-03-27T12:00:00Z",
        ["2022-03-26T22:00:00Z", "2022-03-27T21:00:00Z"],
    );
    assert_window(
        "day@Africa/Cairo",
        "2023-04-28T12:00:00Z",
        ["2023-04-27T22:00:00Z", "2023-04-28T21:00:00Z"],
    );
    assert_window(
        "month@Africa/Cairo",
        "2014-08-15T12:00:00Z",
        ["2014-07-31T22:00:00Z", "2014-08-31T21:00:00Z"],
    );
}

#[test]
fn first_of_two_midnights_begins_the_day() {
    // Clocks went from 00:01 back to 23:01, which belongs to the day that has begun.
    let johns = "day@America/St_Johns";
    assert_window(johns, "2009-11-01T03:00:00Z", ["2009-11-01T02:30:00Z", "2009-11-02T03:30:00Z"]);
    // Clocks went from 01:00 back to 00:00.
    assert_window(
        "day@America/Havana",
        "2022-11-06T12:00:00Z",
        ["2022-11-06T04:00:00Z", "2022-11-07T05:00:00Z"],
    );
}

#[test]
fn day_that_a_zone_skipped_has_no_window() {
    let expected = ["2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"];
    assert_window("day@Pacific/Apia", "2011-12-30T10:00:00Z", expected);
    assert_window("day@Pacific/Apia", "2011-12-30T09:59:59Z", ["2011-12-29T10:00:00Z", expected[0]]);
    assert_window(
        "month+30@Pacific/Apia",
        "2012-01-10T00:00:00Z",
        ["2011-12-30T10:00:00Z", "2012-01-29T10:00:00Z"],
    );
}

#[test]
fn anchor_after_the_last_day_of_a_month_falls_on_that_day() {
    let months = [
        ("2026-01-31T00:00:00Z", "2026-02-28T00:00:00Z"),
        ("2026-02-28T00:00:00Z", "2026-03-31T00:00:00Z"),
        ("2026-03-31T00:00:00Z", "2026-04-30T00:00:00Z"),
        ("2028-01-31T00:00:00Z", "2028-02-29T00:00:00Z"),
        ("2028-02-29T00:00:00Z", "2028-03-31T00:00:00Z"),
    ];
    for (start, end) in months {
        assert_window("month+31", start, [start, end]);
    }
    assert_window("month+29", "2027-03-01T00:00:00Z", ["2027-02-28T00:00:00Z", "2027-03-29T00:00:00Z"]);
    let leap = "year+02-29@UTC";
    assert_window(leap, "2024-05-01T00:00:00Z", ["2024-02-29T00:00:00Z", "2025-02-28T00:00:00Z"]);
    assert_window(leap, "2027-12-01T00:00:00Z", ["2027-02-28T00:00:00Z", "2028-02-29T00:00:00Z"]);
    assert_window(leap, "2100-03-01T00:00:00Z", ["2100-02-28T00:00:00Z", "2101-02-28T00:00:00Z"]);
}

#[test]
fn weeks_quarters_and_years_begin_on_their_anchors() {
    assert_window("week", "2026-01-01T00:00:00Z", ["2025-12-29T00:00:00Z", "2026-01-05T00:00:00Z"]);
    assert_window("week+7", "2026-01-01T00:00:00Z", ["2025-12-28T00:00:00Z", "2026-01-04T00:00:00Z"]);
    assert_window("quarter", "2026-05-31T00:00:00Z", ["2026-04-01T00:00:00Z", "2026-07-01T00:00:00Z"]);
    assert_window("quarter+02-31", "2026-01-01T00:00:00Z", ["2025-11-30T00:00:00Z", "2026-02-28T00:00:00Z"]);
    assert_window(
        "year@Asia/Tokyo",
        "2025-12-31T15:00:00Z",
        ["2025-12-31T15:00:00Z", "2026-12-31T15:00:00Z"],
    );
    assert_window(
        "year+04-06@Europe/London",
        "2026-04-05T22:59:59Z",
        ["2025-04-05T23:00:00Z", "2026-04-05T23:00:00Z"],
    );
}

#[test]
fn day_in_utc_is_a_window_of_24_hours_by_the_clock() {
    for now_us in [86_400_000_000, 1_577_836_799_999_999, 1_577_836_800_000_000, 1 << 52] {
        let start = now_us - now_us % 86_400_000_000;
        assert_eq!(Calendar::DAY.window_at(now_us), start..start + 86_400_000_000);
    }
}

#[test]
fn every_time_has_a_window() {
    let calendars =
        ["day", "week+3", "month+31@Pacific/Kiritimati", "quarter+03-31", "year+12-31@Pacific/Pago_Pago"];
    for text in calendars {
        for now_us in [0, 1, 1 << 40, 1 << 53] {
            assert!(calendar(text).window_at(now_us).contains(&now_us), "{text} at {now_us}");
        }
        // A foreign number is no reason to panic.
        assert!(calendar(text).window_at(u64::MAX).start < 1 << 53);
    }
}

#[test]
fn text_of_a_calendar_is_parsed_into_the_same_calendar() {
    for text in [
        "day@UTC",
        "week@UTC",
        "week+7@America/Argentina/Buenos_Aires",
        "month@Etc/GMT+5",
        "month+15@Europe/Berlin",
        "quarter@UTC",
        "quarter+03-31@America/Port-au-Prince",
        "quarter+02-01@UTC",
        "year@UTC",
        "year+02-29@Asia/Kathmandu",
        "year+12-01@UTC",
    ] {
        assert_eq!(calendar(text).to_string(), text);
    }
    assert_eq!(calendar("month"), Calendar::MONTH);
    assert_eq!(calendar("month+1@utc"), Calendar::MONTH);
    assert_eq!(calendar("day@europe/berlin").to_string(), "day@Europe/Berlin");
    assert_eq!(calendar("week+7"), Calendar::WEEK.anchored_to_day(7).unwrap());
    assert_eq!(calendar("year+2-9"), Calendar::YEAR.anchored_to_date(2, 9).unwrap());
}

#[test]
fn errors_of_calendars_say_what_is_valid() {
    for (text, expected) in [
        ("", "no period ``: use day, week, month, quarter or year"),
        ("fortnight", "no period `fortnight`: use day"),
        ("Month", "no period `Month`"),
        ("day+1", "anchor 1: a day has no anchor"),
        ("week+0", "anchor 0: the anchor of a week is a weekday, 1 (Monday) to 7 (Sunday)"),
        ("week+8", "anchor 8"),
        ("month+0", "anchor 0: the anchor of a month is a day, 1 to 31"),
        ("month+32", "anchor 32"),
        ("month+256", "anchor 256"),
        ("month++1", "anchor +1"),
        ("month+", "anchor : the anchor of a month"),
        ("month+02-15", "anchor 02-15: the anchor of a month is a day"),
        ("quarter+15", "anchor 15: the anchor of a quarter is a month, 01 to 03, and a day, such as 02-15"),
        ("quarter+04-01", "anchor 04-01"),
        ("year+02-30", "anchor 02-30: the anchor of a year is a month and a day, such as 02-29"),
        ("year+13-01", "anchor 13-01"),
        ("month@Europe/Berln", "no time zone `Europe/Berln`: did you mean `Europe/Berlin`?"),
        ("month@", "no time zone ``"),
        ("month@../../etc/passwd", "no time zone `../../etc/passwd`"),
        ("month@a:b{c}", "no time zone `a:b{c}`: use a name of the IANA database"),
        ("month@\u{1b}[31m", "no time zone `\\u{1b}[31m`"),
    ] {
        let error = text.parse::<Calendar>().unwrap_err();
        assert!(error.is_config() && error.to_string().contains(expected), "{text}: {error}");
    }
    assert!("x".repeat(1_000_000).parse::<Calendar>().is_err());
    assert!(Calendar::DAY.in_zone(&"é".repeat(100_000)).is_err());
}

#[test]
fn zone_is_read_once_and_has_one_name() {
    let zones: HashSet<Calendar> = ["Europe/Berlin", "EUROPE/BERLIN", "europe/berlin"]
        .map(|name| Calendar::DAY.in_zone(name).unwrap())
        .into();
    assert_eq!(zones.len(), 1);
    assert!(Calendar::DAY.in_zone("Europe/Berlin").unwrap() < Calendar::DAY);
    assert_eq!(size_of::<Option<Calendar>>(), 16);
    assert_eq!(Calendar::DAY.zone.time_zone(), &TimeZone::UTC);
}

#[test]
fn mean_lengths_are_those_of_the_gregorian_calendar() {
    let windows_of = |text: &str| {
        let windows = calendar(text);
        let (mut at, until, mut count) = (micros("1972-01-01T00:00:00Z"), micros("2172-01-01T00:00:00Z"), 0);
        while at < until {
            at = windows.window_at(at).end;
            count += 1;
        }
        count
    };
    assert_eq!(["year", "quarter", "month"].map(windows_of), [200, 800, 2400]);
    assert_eq!(Calendar::YEAR.mean_us(), 4 * Calendar::QUARTER.mean_us());
    assert_eq!(Calendar::YEAR.mean_us(), 12 * Calendar::MONTH.mean_us());
    assert_eq!(400 * Calendar::YEAR.mean_us(), 146_097 * Calendar::DAY.mean_us());
    assert_eq!(7 * Calendar::DAY.mean_us(), Calendar::WEEK.mean_us());
}

#[cfg(feature = "serde")]
#[test]
fn quota_is_serialized_with_its_calendar_in_place_of_a_length() {
    use std::time::Duration;

    use crate::quota::Quota;

    let quota = Quota::calendar_window(9, calendar("month+15@Europe/Berlin"));
    let text = r#"{"algorithm":"fixed_window","limit":9,"calendar":"month+15@Europe/Berlin"}"#;
    assert_eq!(serde_json::to_string(&quota).unwrap(), text);
    assert_eq!(serde_json::from_str::<Quota>(text).unwrap(), quota);
    let clock = Quota::fixed_window(9, Duration::from_secs(60)).aligned_to_clock();
    let text = r#"{"algorithm":"fixed_window","limit":9,"window_us":60000000,"aligned_to_clock_at_us":0}"#;
    assert_eq!(serde_json::to_string(&clock).unwrap(), text);
    assert_eq!(serde_json::from_str::<Quota>(text).unwrap(), clock);
    for (fields, expected) in [
        (r#""limit":9"#, "missing field `window_us`"),
        (r#""limit":0,"calendar":"month""#, "1 to 2^48"),
        (r#""limit":9,"calendar":"mouth""#, "no period `mouth`"),
        (r#""limit":9,"calendar":"day","window_us":86400000000"#, "cannot be combined"),
        (r#""limit":9,"calendar":"day","aligned_to_clock_at_us":0"#, "aligned to its calendar"),
    ] {
        let text = format!(r#"{{"algorithm":"fixed_window",{fields}}}"#);
        let error = serde_json::from_str::<Quota>(&text).unwrap_err().to_string();
        assert!(error.contains(expected), "{fields}: {error}");
    }
}
