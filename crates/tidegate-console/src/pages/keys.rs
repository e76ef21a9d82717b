//! The keys: those that are denied now, the most used ones, and the search for one key.

use askama::Template;
use tidegate::admin::{AuditEntry, Found, GivenKey, human};
use tidegate::{Override, Switch};

use super::catalog::Catalog;
use super::frame::{Frame, Tab};
use super::history::Event;
use super::key_search::KeySearch;
use super::overrides::OverrideRow;
use super::states::StateRow;
use super::top::Ranked;
use super::{display, filters, stored_key};

/// The changes of a key that are shown.
const MAX_EVENTS: usize = 50;
/// The maximum switches that the page of a key names.
const MAX_SWITCHES: usize = 20;

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
    /// The classes of the style sheet. Green only if a complete round has read every key.
    pub(super) class: &'static str,
}

/// One key.
#[derive(Template)]
#[template(path = "key.html")]
pub(super) struct KeyPage {
    pub(super) frame: Frame,
    /// The key for people: itself, or its stored form.
    pub(super) shown: String,
    /// The form in Redis.
    pub(super) written: String,
    /// The stored form, for changes.
    pub(super) form: String,
    pub(super) is_known: bool,
    /// The switches that decide checks of this key.
    pub(super) switches: Vec<String>,
    pub(super) states: Vec<StateRow>,
    pub(super) denials: Vec<(String, String)>,
    pub(super) denials_error: Option<String>,
    pub(super) is_complete: bool,
    pub(super) overrides: Vec<OverrideRow>,
    pub(super) history: Result<Vec<Event>, String>,
    /// The gates of the rules, to choose one for a block.
    pub(super) gates: Vec<String>,
}

impl Keys {
    pub(super) fn new(frame: Frame, gate: &str, lists: Result<Lists, String>) -> Self {
        let live_url = match gate {
            "" => "/keys/live".to_owned(),
            gate => format!("/keys/live?gate={}", display::query_value(gate)),
        };
        let frame = Frame { title: "Keys".to_owned(), tab: Some(Tab::Keys), ..frame };
        Self { frame, gate: gate.to_owned(), lists, live_url }
    }
}

impl Lists {
    /// `log` is the audit log, the newest entry first; `None` if it cannot be read.
    pub(super) fn new(
        ranked: &Ranked,
        overrides: &[Override],
        log: Option<&[AuditEntry]>,
        catalog: &Catalog,
    ) -> Self {
        let rows = |found: &[Found]| {
            found.iter().map(|found| StateRow::new(found, overrides, log, catalog)).collect::<Vec<_>>()
        };
        let denied = rows(&ranked.denied);
        let progress = match (ranked.last_round, ranked.keys_read) {
            (Some(keys), _) => format!("{} read.", counted_keys(keys)),
            (None, read) => {
                format!("{} read so far: each refresh reads 10,000 more.", counted_keys(read))
            }
        };
        let is_readable = ranked.most_used.iter().all(|found| found.usage.is_ok());
        let (class, summary) = match (denied.len(), ranked.last_round) {
            (0, None) => ("", "No key is denied among those read so far".to_owned()),
            (0, Some(_)) if is_readable => ("verdict good", "No key is denied now".to_owned()),
            (0, Some(_)) => ("verdict warn", "No key is denied among those that can be read".to_owned()),
            (super::top::LISTED, _) => {
                ("verdict warn", format!("{} or more keys are denied now", denied.len()))
            }
            (number, _) => {
                let verb = if number == 1 { "is" } else { "are" };
                ("verdict warn", format!("{} {verb} denied now", display::counted(number, "key")))
            }
        };
        Self { denied, most_used: rows(&ranked.most_used), progress, summary, class }
    }
}

fn counted_keys(keys: u64) -> String {
    display::counted(usize::try_from(keys).unwrap_or(usize::MAX), "key")
}

impl KeyPage {
    pub(super) fn new(
        frame: Frame,
        key: &SearchedKey,
        search: &KeySearch,
        overrides: &[Override],
        history: Result<Vec<AuditEntry>, String>,
        catalog: &Catalog,
    ) -> Self {
        let log = history.as_deref().ok();
        let state = |found| StateRow::new(found, overrides, log, catalog);
        let of_key = |entry: &&Override| matches!(entry, Override::Quota { key: written, .. } if key.written.contains(written));
        Self {
            frame: Frame {
                title: format!("Key {}", tidegate::admin::visible(&key.shown)),
                tab: Some(Tab::Keys),
                ..frame
            },
            shown: key.shown.clone(),
            written: key.written.first().map(|form| stored_key::redacted(form)).unwrap_or_default(),
            form: key.form.clone(),
            is_known: key.bytes.is_some(),
            switches: switches_of(overrides, &search.found, catalog),
            states: search.found.iter().map(state).collect(),
            denials: search
                .denials
                .iter()
                .map(|(gate, counted)| {
                    let left = human(counted.ends_in);
                    (gate.clone(), format!("{} denials count towards a ban for {left} more", counted.count))
                })
                .collect(),
            denials_error: search.denials_error.as_ref().map(ToString::to_string),
            is_complete: search.is_complete,
            overrides: overrides
                .iter()
                .filter(of_key)
                .filter_map(|entry| OverrideRow::new(entry, history.as_deref().unwrap_or_default()))
                .collect(),
            history: history.map(|entries| {
                let of_key = entries.iter().filter(|entry| key.written.contains(&entry.record.key));
                of_key.take(MAX_EVENTS).map(|entry| Event::new(entry, catalog)).collect()
            }),
            gates: catalog.first_names(),
        }
    }
}

/// Returns what switches do with checks of a key: of all gates that deny every check, and of those with a state of the key.
fn switches_of(overrides: &[Override], found: &[Found], catalog: &Catalog) -> Vec<String> {
    let has_state = |gate: &str| found.iter().any(|found| found.name.gate == gate);
    let sentence = |entry: &Override| match entry {
        Override::Switch { gate, switch: Switch::Closed, .. } => {
            let gate = catalog.shown(gate);
            Some(format!("{gate} is switched closed: every check of this key there is denied."))
        }
        Override::Switch { gate, switch, .. } if has_state(gate) => {
            Some(format!("{} is {}.", catalog.shown(gate), display::switch_effect(switch)))
        }
        _ => None,
    };
    overrides.iter().filter_map(sentence).take(MAX_SWITCHES).collect()
}

/// A key that a reader looks for.
#[derive(Clone, Debug)]
pub(super) struct SearchedKey {
    /// For people: the text, or the stored form.
    pub(super) shown: String,
    /// The stored form, for links and forms.
    pub(super) form: String,
    /// The key itself; `None` if only its hash or HMAC is known.
    pub(super) bytes: Option<Vec<u8>>,
    /// Its possible forms in Redis, the most likely one first.
    pub(super) written: Vec<String>,
}

impl SearchedKey {
    /// Makes a key from a stored form. `forms_of` returns the forms that a key can have in Redis. `None` if no key has
    /// this form.
    pub(super) fn of_stored(form: &str, forms_of: impl Fn(&GivenKey) -> Vec<String>) -> Option<Self> {
        let key = GivenKey::stored(form).ok()?;
        let mut written = forms_of(&key);
        if written.is_empty() {
            written.push(form.to_owned());
        }
        let bytes = match key {
            GivenKey::Plain(bytes) => Some(bytes),
            GivenKey::Stored(_) => None,
        };
        Some(Self { shown: stored_key::shown(form), form: form.to_owned(), bytes, written })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(form: &str, is_complete: bool) -> String {
        let key = SearchedKey::of_stored(form, |_| Vec::new()).unwrap();
        let (found, denials, denials_error) = Default::default();
        let search = KeySearch { found, denials, denials_error, is_complete };
        let page = KeyPage::new(Frame::default(), &key, &search, &[], Ok(Vec::new()), &Catalog::default());
        page.render().unwrap()
    }

    #[test]
    fn page_of_an_aborted_search_claims_only_what_was_read() {
        const NO_STATE: &str = "There is no state of this key";
        const COMPLETE: &str = "The quotas of the rules are complete";
        let (complete, plain, hashed) = (page("bob", true), page("bob", false), page("%hmac=00", false));
        assert!(complete.contains(NO_STATE) && !complete.contains("The search ended"), "{complete}");
        assert!(!plain.contains(NO_STATE) && plain.contains(COMPLETE), "{plain}");
        assert!(!hashed.contains(NO_STATE) && !hashed.contains(COMPLETE), "{hashed}");
        assert!(hashed.contains("States may be missing"), "{hashed}");
    }
}
