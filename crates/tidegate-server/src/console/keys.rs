//! The keys: those that are denied now, the most used ones, and the search for one key.

use askama::Template;
use tidegate::Override;
use tidegate::admin::{Found, decoded_key, human};

use super::catalog::Catalog;
use super::filters;
use super::frame::{Frame, Tab};
use super::key_search::KeySearch;
use super::overrides::Row as OverrideRow;
use super::states::StateRow;
use super::top::Ranked;
use super::words;

/// The list of keys.
#[derive(Template)]
#[template(path = "keys.html")]
pub(super) struct Keys {
    pub(super) frame: Frame,
    pub(super) gate: String,
    pub(super) lists: Result<Lists, String>,
    /// The URL of the part that the script replaces.
    pub(super) live_url: String,
}

/// The part of the list that the script replaces.
#[derive(Template)]
#[template(path = "keys_live.html")]
pub(super) struct KeysLive {
    pub(super) lists: Result<Lists, String>,
}

pub(super) struct Lists {
    pub(super) denied: Vec<StateRow>,
    pub(super) most_used: Vec<StateRow>,
    /// How many keys were read.
    pub(super) progress: String,
    pub(super) summary: String,
}

/// One key.
#[derive(Template)]
#[template(path = "key.html")]
pub(super) struct KeyPage {
    pub(super) frame: Frame,
    /// The key for people: itself, or its stored form.
    pub(super) shown: String,
    /// The form in Redis, for links.
    pub(super) written: String,
    /// The key for changes: itself if it is text, otherwise its form in Redis.
    pub(super) changed: String,
    pub(super) is_known: bool,
    pub(super) states: Vec<StateRow>,
    pub(super) denials: Vec<(String, String)>,
    pub(super) is_complete: bool,
    pub(super) overrides: Vec<OverrideRow>,
    pub(super) history: Result<Vec<Event>, String>,
    /// The gates of the rules, to choose one for a block.
    pub(super) gates: Vec<String>,
}

/// An entry of the audit log.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) when: String,
    pub(super) who: String,
    pub(super) what: String,
    pub(super) reason: String,
}

impl Keys {
    pub(super) fn new(frame: Frame, gate: &str, lists: Result<Lists, String>) -> Self {
        let live_url = match gate {
            "" => "/keys/live".to_owned(),
            gate => format!("/keys/live?gate={}", words::query_value(gate)),
        };
        let frame = Frame { title: "Keys".to_owned(), tab: Some(Tab::Keys), ..frame };
        Self { frame, gate: gate.to_owned(), lists, live_url }
    }
}

impl Lists {
    pub(super) fn new(ranked: &Ranked, overrides: &[Override], catalog: &Catalog) -> Self {
        let rows = |found: &[Found]| {
            found.iter().map(|found| StateRow::new(found, overrides, catalog)).collect::<Vec<_>>()
        };
        let denied = rows(&ranked.denied);
        let progress = match (ranked.last_round, ranked.keys_read) {
            (Some(keys), _) => format!("Of {} keys.", words::grouped(&keys.to_string())),
            (None, read) => format!(
                "Of the first {} keys: each refresh reads 10\u{2009}000 more.",
                words::grouped(&read.to_string())
            ),
        };
        let summary = match denied.len() {
            0 => "No key is denied now".to_owned(),
            super::top::LISTED => format!("{} or more keys are denied now", denied.len()),
            number => format!(
                "{} {} denied now",
                words::counted(number, "key"),
                if number == 1 { "is" } else { "are" }
            ),
        };
        Self { denied, most_used: rows(&ranked.most_used), progress, summary }
    }
}

impl KeyPage {
    pub(super) fn new(
        frame: Frame,
        key: &Key,
        search: &KeySearch,
        overrides: &[Override],
        history: Result<Vec<Event>, String>,
        catalog: &Catalog,
    ) -> Self {
        let of_key = |entry: &&Override| matches!(entry, Override::Quota { key: written, .. } if key.written.contains(written));
        let mut gates: Vec<String> = catalog.names().map(str::to_owned).collect();
        gates.sort_unstable();
        Self {
            frame: Frame { title: format!("Key {}", key.shown), tab: Some(Tab::Keys), ..frame },
            shown: key.shown.clone(),
            written: key.written.first().cloned().unwrap_or_default(),
            is_known: key.text().is_some(),
            changed: key.text().or_else(|| key.written.first().cloned()).unwrap_or_default(),
            states: search.found.iter().map(|found| StateRow::new(found, overrides, catalog)).collect(),
            denials: search
                .denials
                .iter()
                .map(|(gate, counted)| {
                    let left = human(counted.ends_in);
                    (gate.clone(), format!("{} denials count towards a ban for {left} more", counted.count))
                })
                .collect(),
            is_complete: search.is_complete,
            overrides: overrides.iter().filter(of_key).filter_map(OverrideRow::new).collect(),
            history,
            gates: gates.into_iter().take(500).collect(),
        }
    }
}

/// A key that a reader looks for.
#[derive(Clone, Debug)]
pub(super) struct Key {
    /// For people.
    pub(super) shown: String,
    /// The key itself; `None` if only its hash or HMAC is known.
    pub(super) bytes: Option<Vec<u8>>,
    /// Its possible forms in Redis, the most likely one first.
    pub(super) written: Vec<String>,
}

impl Key {
    /// Returns the key itself, if it is known, and text.
    fn text(&self) -> Option<String> {
        self.bytes.clone().and_then(|bytes| String::from_utf8(bytes).ok())
    }

    /// Makes a key from its text.
    pub(super) fn of_text(text: &str, stored_forms: Vec<String>) -> Self {
        Self { shown: text.to_owned(), bytes: Some(text.as_bytes().to_vec()), written: stored_forms }
    }

    /// Makes a key from its form in Redis. `None` if no key has this form.
    pub(super) fn of_written(written: &str) -> Option<Self> {
        if written.is_empty() || !written.bytes().all(|byte| byte.is_ascii_graphic()) {
            return None;
        }
        Some(Self {
            shown: written.to_owned(),
            bytes: decoded_key(written),
            written: vec![written.to_owned()],
        })
    }
}
