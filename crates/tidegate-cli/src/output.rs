//! All output, to terminals, files and pipes. Escapes control characters, so that stored data cannot control
//! a terminal.

use std::borrow::Cow;
use std::env;
use std::fmt::Write as _;
use std::io::{self, BufWriter, IsTerminal, Write};

use clap::builder::styling::{AnsiColor, Style};
use serde_json::ser::Formatter;
use tidegate::Warning;
// All output passes through this function, or is ASCII.
pub(crate) use tidegate::admin::visible as safe;

use crate::failure::Failure;
use crate::log;

/// The maximum width of a table cell, in characters. JSON shows the whole text.
const MAX_CELL_CHARS: usize = 120;

/// The color of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    #[default]
    Plain,
    Good,
    Bad,
    Warn,
    Faint,
}

/// A part of a line, in one color.
#[derive(Clone, Debug, Default)]
pub(crate) struct Text(pub(crate) Tone, pub(crate) String);

impl<T: Into<String>> From<T> for Text {
    fn from(text: T) -> Self {
        Self(Tone::Plain, text.into())
    }
}

/// Standard output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    /// Prints JSON instead of text.
    pub(crate) json: bool,
    is_colored: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Self { json, is_colored: wants_color(&io::stdout()) }
    }

    pub(crate) const fn is_colored(self) -> bool {
        self.is_colored
    }

    /// Returns whether a live view can be drawn.
    pub(crate) fn is_screen(self) -> bool {
        !self.json && io::stdout().is_terminal() && io::stdin().is_terminal()
    }

    /// Prints a result as [`print`](Self::print) does, without waiting for the reader. Needs the log.
    pub(crate) fn print_later(self, json: &serde_json::Value, lines: &[Vec<Text>]) {
        log::print(match self.json {
            true => ascii(json),
            false => lines.iter().map(|line| self.line(line)).collect::<Vec<_>>().join("\n"),
        });
    }

    /// Prints a result: with `--json` the object, otherwise the lines.
    pub(crate) fn print(self, json: &serde_json::Value, lines: &[Vec<Text>]) -> Result<(), Failure> {
        let mut out = BufWriter::new(io::stdout().lock());
        if self.json {
            let mut json_out = serde_json::Serializer::with_formatter(&mut out, Ascii);
            serde::Serialize::serialize(json, &mut json_out).map_err(io::Error::from)?;
            writeln!(out)?;
        } else {
            for line in lines {
                writeln!(out, "{}", self.line(line))?;
            }
        }
        Ok(out.flush()?)
    }

    /// Prints generated text without escaping.
    pub(crate) fn verbatim(self, text: &[u8]) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        out.write_all(text)?;
        Ok(out.flush()?)
    }

    fn line(self, line: &[Text]) -> String {
        let mut out = String::new();
        for Text(tone, text) in line {
            let style = if self.is_colored { tone.style() } else { Style::new() };
            // Writing to a String cannot fail.
            let _ = write!(out, "{style}{}{style:#}", safe(text));
        }
        out.truncate(out.trim_end().len());
        out
    }
}

/// Aligns rows into columns under a header. All cells are left-aligned, numbers too, and cut to their maximum
/// width.
pub(crate) fn table(header: &[&str], rows: Vec<Vec<Text>>) -> Vec<Vec<Text>> {
    let header = header.iter().map(|name| Text(Tone::Faint, (*name).to_owned())).collect();
    let mut lines: Vec<Vec<Text>> = std::iter::once(header).chain(rows).collect();
    lines.iter_mut().flatten().for_each(|text| text.1 = cell(&text.1));
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    for column in 0..columns {
        let width = |line: &Vec<Text>| line.get(column).map_or(0, |text| text.1.chars().count());
        let widest = lines.iter().map(width).max().unwrap_or(0);
        for line in &mut lines {
            let missing = widest + 2 - width(line);
            if let Some(text) = line.get_mut(column) {
                text.1 += &" ".repeat(missing);
            }
        }
    }
    lines
}

/// Escapes the text of a table cell, and cuts it to the maximum width.
pub(crate) fn cell(text: &str) -> String {
    let text = safe(text);
    let mut ends = text.char_indices().map(|(start, _)| start).skip(MAX_CELL_CHARS - 1);
    match (ends.next(), ends.next()) {
        (Some(end), Some(_)) => format!("{}…", &text[..end]),
        _ => text.into_owned(),
    }
}

/// The importance of a line on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Info,
    Warn,
    Error,
}

/// Makes all further output to standard error entries of a log.
pub(crate) fn start_log(json: bool) -> io::Result<()> {
    let mention = move |missing| {
        let entries = if missing == 1 { "entry is" } else { "entries are" };
        let message = format!("standard error was not read in time: {missing} {entries} missing here");
        let object = serde_json::json!({ "warning": { "message": message, "dropped": missing } });
        line(json, Level::Warn, &message, &object)
    };
    let unprinted = move |error: &io::Error| {
        let message = format!("cannot write to standard output: {error}. The service goes on");
        line(json, Level::Warn, &message, &serde_json::json!({ "warning": { "message": message } }))
    };
    log::start(mention, unprinted)
}

/// Prints an error to standard error.
pub(crate) fn fail(json: bool, code: u8, message: &str) {
    let object = serde_json::json!({ "error": { "exit_code": code, "message": message } });
    report(json, Level::Error, message, &object);
}

/// Prints a warning to standard error.
pub(crate) fn warn(json: bool, message: &str) {
    report(json, Level::Warn, message, &serde_json::json!({ "warning": { "message": message } }));
}

/// Prints a warning of a limiter to standard error.
pub(crate) fn warn_of(json: bool, warning: &Warning) {
    let (code, message) = (warning.code(), warning.message());
    let occurrences = warning.occurrences();
    let object = serde_json::json!({ "code": code, "message": message, "occurrences": occurrences });
    report(json, Level::Warn, &warning.to_string(), &serde_json::json!({ "warning": object }));
}

/// Prints an event that needs no action to standard error.
pub(crate) fn inform(json: bool, message: &str) {
    report(json, Level::Info, message, &serde_json::json!({ "info": { "message": message } }));
}

/// Prints an entry of the audit log to standard error, as JSON.
#[cfg(feature = "console")]
pub(crate) fn audit(entry: &serde_json::Value, is_stored: bool) {
    report(true, if is_stored { Level::Info } else { Level::Error }, "", entry);
}

fn report(json: bool, level: Level, message: &str, object: &serde_json::Value) {
    match json {
        _ if log::is_started() => log::write(line(json, level, message, object)),
        true => print_error(&ascii(object)),
        false => print_error(&format!("{} {}", level.styled("tidegate:"), visible_lines(message, "\n"))),
    }
}

fn print_error(line: &str) {
    // If standard error cannot be written either, the exit code still reports the failure.
    let _ = writeln!(io::stderr(), "{line}");
}

/// Returns an entry of a log: its time, its level and its message; as JSON, also the fields of its object.
fn line(json: bool, level: Level, message: &str, object: &serde_json::Value) -> String {
    let time = log::now();
    if !json {
        // No further line of a message looks like an entry.
        return format!("{time} {} {}", level.styled(level.name()), visible_lines(message, "\n  "));
    }
    let mut object = object.clone();
    object["time"] = time.into();
    object["level"] = level.name().to_ascii_lowercase().into();
    ascii(&object)
}

/// Escapes the lines of a message, and joins them.
fn visible_lines(message: &str, separator: &str) -> String {
    message.lines().map(safe).collect::<Vec<Cow<'_, str>>>().join(separator)
}

impl Level {
    const fn name(self) -> &'static str {
        match self {
            Self::Info => "INFO",
            Self::Warn => "WARN",
            Self::Error => "ERROR",
        }
    }

    /// Returns a text in the color of the level, if standard error is a terminal.
    fn styled(self, text: &str) -> String {
        let tone = match self {
            Self::Info => Tone::Plain,
            Self::Warn => Tone::Warn,
            Self::Error => Tone::Bad,
        };
        let style = if wants_color(&io::stderr()) { tone.style() } else { Style::new() };
        format!("{style}{text}{style:#}")
    }
}

fn wants_color(stream: &impl IsTerminal) -> bool {
    let is_set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
    stream.is_terminal() && !is_set("NO_COLOR") && env::var_os("TERM").is_none_or(|term| term != "dumb")
}

impl Tone {
    const fn style(self) -> Style {
        match self {
            Self::Plain => Style::new(),
            Self::Good => AnsiColor::Green.on_default(),
            Self::Bad => AnsiColor::Red.on_default(),
            Self::Warn => AnsiColor::Yellow.on_default(),
            Self::Faint => Style::new().dimmed(),
        }
    }
}

fn ascii(json: &serde_json::Value) -> String {
    let mut out = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, Ascii);
    // Writing to a Vec cannot fail.
    let _ = serde::Serialize::serialize(json, &mut serializer);
    String::from_utf8_lossy(&out).into_owned()
}

/// A JSON formatter that escapes DEL and all characters beyond ASCII. JSON allows them unescaped, but some of
/// them control terminals.
struct Ascii;

impl Formatter for Ascii {
    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, out: &mut W, text: &str) -> io::Result<()> {
        for letter in text.chars() {
            match letter {
                ' '..='~' => out.write_all(&[letter as u8])?,
                _ => {
                    let mut units = [0; 2];
                    letter
                        .encode_utf16(&mut units)
                        .iter()
                        .try_for_each(|unit| write!(out, "\\u{unit:04x}"))?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_cell_is_cut_to_the_maximum_width() {
        let widest = "x".repeat(MAX_CELL_CHARS);
        assert_eq!(cell(&widest), widest);
        let cut = cell(&(widest + "é"));
        assert_eq!((cut.chars().count(), cut.ends_with("x…")), (MAX_CELL_CHARS, true));
        assert_eq!(cell(&"\u{202e}".repeat(1_000)).chars().count(), MAX_CELL_CHARS);
    }

    #[test]
    fn further_lines_of_a_message_are_indented_in_the_log() {
        let entry = line(false, Level::Error, "a\n12:01 ERROR b\x1b", &serde_json::Value::Null);
        assert!(entry.ends_with("Z ERROR a\n  12:01 ERROR b\\u{1b}"), "{entry}");
    }

    #[test]
    fn json_is_ascii_and_round_trips() {
        let value = serde_json::json!({ "k\u{9b}": "\x1b[0m\u{7f}\u{85}\u{202e}é🦀\"\\\n" });
        let text = ascii(&value);
        assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }

    #[test]
    fn column_widths_include_escapes() {
        let rows = vec![vec!["a".into(), "b".into()], vec!["\x1b".into(), "c".into()]];
        let lines = table(&["k", "v"], rows);
        let plain = Output { json: false, is_colored: false };
        let lines: Vec<String> = lines.iter().map(|line| plain.line(line)).collect();
        assert_eq!(lines, ["k       v", "a       b", "\\u{1b}  c"]);
    }
}
