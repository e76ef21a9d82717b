//! All that is written to the terminal, to files and to pipes goes through here, so that nothing
//! that was stored by somebody else can command a terminal.

use std::borrow::Cow;
use std::env;
use std::fmt::Write as _;
use std::io::{self, BufWriter, IsTerminal, Write};

use clap::builder::styling::{AnsiColor, Style};
use serde_json::ser::Formatter;

use crate::failure::Failure;

/// How a text is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    #[default]
    Plain,
    Good,
    Bad,
    Warn,
    Faint,
}

/// A piece of a line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Text(pub(crate) Tone, pub(crate) String);

impl<T: Into<String>> From<T> for Text {
    fn from(text: T) -> Self {
        Self(Tone::Plain, text.into())
    }
}

/// Where answers go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    /// For programs, not for people.
    pub(crate) json: bool,
    is_coloured: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Self { json, is_coloured: wants_colour(&io::stdout()) }
    }

    pub(crate) const fn is_coloured(self) -> bool {
        self.is_coloured
    }

    /// Whether there is a screen to draw on.
    pub(crate) fn is_screen(self) -> bool {
        !self.json && io::stdout().is_terminal() && io::stdin().is_terminal()
    }

    /// An answer: the one in JSON, or the other.
    pub(crate) fn say(self, json: &serde_json::Value, lines: &[Vec<Text>]) -> Result<(), Failure> {
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

    /// Text of our own, as it is.
    pub(crate) fn verbatim(self, text: &[u8]) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        out.write_all(text)?;
        Ok(out.flush()?)
    }

    fn line(self, line: &[Text]) -> String {
        let mut out = String::new();
        for Text(tone, text) in line {
            let style = if self.is_coloured { tone.style() } else { Style::new() };
            // Writing to a String cannot fail.
            let _ = write!(out, "{style}{}{style:#}", safe(text));
        }
        out.truncate(out.trim_end().len());
        out
    }
}

/// Columns, the first row in a tone of its own. Numbers are not told from words: all begin at the left.
pub(crate) fn table(header: &[&str], rows: Vec<Vec<Text>>) -> Vec<Vec<Text>> {
    let header = header.iter().map(|name| Text(Tone::Faint, (*name).to_owned())).collect();
    let mut lines: Vec<Vec<Text>> = std::iter::once(header).chain(rows).collect();
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    for column in 0..columns {
        let width = |line: &Vec<Text>| line.get(column).map_or(0, |text| safe(&text.1).chars().count());
        let widest = lines.iter().map(width).max().unwrap_or(0);
        for line in &mut lines {
            let missing = widest + 2 - width(line);
            if let Some(text) = line.get_mut(column) {
                text.1 = safe(&text.1).into_owned() + &" ".repeat(missing);
            }
        }
    }
    lines
}

/// What went wrong.
pub(crate) fn fail(json: bool, code: u8, message: &str) {
    match json {
        true => {
            let error = serde_json::json!({ "error": { "exit_code": code, "message": message } });
            complain(&ascii(&error), None);
        }
        false => complain(message, Some(Tone::Bad)),
    }
}

/// What has to be known beside the answer.
pub(crate) fn warn(message: &str) {
    complain(message, Some(Tone::Warn));
}

fn complain(message: &str, tone: Option<Tone>) {
    let mut err = io::stderr().lock();
    let message: Vec<Cow<'_, str>> = message.lines().map(safe).collect();
    let message = message.join("\n");
    let style = tone.filter(|_| wants_colour(&io::stderr())).map(Tone::style).unwrap_or_default();
    // Where that cannot be written either, the exit code says it.
    let _ = match tone {
        Some(_) => writeln!(err, "{style}tidegate:{style:#} {message}"),
        None => writeln!(err, "{message}"),
    };
}

/// What stays of a text that may hold anything: what commands a terminal, cannot be seen, or turns the
/// direction of writing, is escaped.
pub(crate) fn safe(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        if is_unsafe(letter) { out.extend(letter.escape_unicode()) } else { out.push(letter) }
    }
    Cow::Owned(out)
}

fn is_unsafe(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

fn wants_colour(stream: &impl IsTerminal) -> bool {
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

/// JSON in which every letter beyond ASCII, and DEL, is escaped: as JSON they may stand as they are, and
/// some of them command terminals.
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
    fn what_commands_a_terminal_is_escaped() {
        for (text, expected) in [
            ("user:42", "user:42"),
            ("josé 🦀", "josé 🦀"),
            ("\x1b[31m", "\\u{1b}[31m"),
            ("a\nb\r\t\0", "a\\u{a}b\\u{d}\\u{9}\\u{0}"),
            ("\u{7f}\u{9b}0m", "\\u{7f}\\u{9b}0m"),
            ("\u{202e}gpj.exe", "\\u{202e}gpj.exe"),
            ("a\u{200b}b", "a\\u{200b}b"),
        ] {
            assert_eq!(safe(text), expected);
        }
    }

    #[test]
    fn json_is_ascii_and_means_the_same() {
        let value = serde_json::json!({ "k\u{9b}": "\x1b[0m\u{7f}\u{85}\u{202e}é🦀\"\\\n" });
        let text = ascii(&value);
        assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }

    #[test]
    fn columns_are_as_wide_as_what_is_shown() {
        let rows = vec![vec!["a".into(), "b".into()], vec!["\x1b".into(), "c".into()]];
        let lines = table(&["k", "v"], rows);
        let plain = Output { json: false, is_coloured: false };
        let lines: Vec<String> = lines.iter().map(|line| plain.line(line)).collect();
        assert_eq!(lines, ["k       v", "a       b", "\\u{1b}  c"]);
    }
}
