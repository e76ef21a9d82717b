//! Changes by operators: the form with the reason, then the page that asks for a confirmation.

use std::collections::HashMap;
use std::time::Duration;

use askama::Template;
use tidegate::admin::human;
use tidegate::algorithm::{ALGORITHMS, Parameters};
use tidegate::{Quota, Rate, Switch};

use super::filters;
use super::frame::{Frame, Tab};
use super::keys::Key;
use super::words;

/// The maximum length of each value, in bytes.
const MAX_VALUE_BYTES: usize = 2_048;
/// The longest time of a change: ten years, as for overrides.
const MAX_DURATION: Duration = Quota::MAX_WINDOW;

/// A change, ready to be made.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) action: Action,
    pub(super) gate: String,
    pub(super) effect: Effect,
    pub(super) reason: String,
}

/// The effect of a change.
#[derive(Clone, Debug)]
pub(super) enum Effect {
    Block { key: Key, lasts: Duration },
    Unblock { key: Key },
    Reset { key: Key },
    Override { key: Key, quota: Quota, lasts: Duration },
    EndOverride { key: Key },
    Switch { switch: Switch, lasts: Option<Duration> },
    EndSwitch,
}

/// The kind of a change, as in the parameter `action`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Block,
    Unblock,
    Reset,
    Override,
    EndOverride,
    Switch,
    EndSwitch,
}

/// The values of the form, as an operator has filled it in.
#[derive(Clone, Debug, Default)]
pub(super) struct Values(pub(super) HashMap<String, String>);

/// The form.
#[derive(Template)]
#[template(path = "change.html")]
pub(super) struct ChangePage {
    pub(super) frame: Frame,
    pub(super) action: Action,
    pub(super) values: Values,
    /// The key for people, if the change is of one key.
    pub(super) key: Option<String>,
    pub(super) algorithms: Vec<(&'static str, bool)>,
    pub(super) error: Option<String>,
}

/// The question before the change.
#[derive(Template)]
#[template(path = "confirm.html")]
pub(super) struct ConfirmPage {
    pub(super) frame: Frame,
    pub(super) question: String,
    pub(super) consequence: String,
    pub(super) followers: String,
    pub(super) reason: String,
    /// The values of the form, repeated.
    pub(super) hidden: Vec<(String, String)>,
    pub(super) button: &'static str,
    pub(super) back: String,
}

impl Action {
    const ALL: [Self; 7] = [
        Self::Block,
        Self::Unblock,
        Self::Reset,
        Self::Override,
        Self::EndOverride,
        Self::Switch,
        Self::EndSwitch,
    ];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Unblock => "unblock",
            Self::Reset => "reset",
            Self::Override => "override",
            Self::EndOverride => "end_override",
            Self::Switch => "switch",
            Self::EndSwitch => "end_switch",
        }
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.as_str() == text)
    }

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Block => "Block a key",
            Self::Unblock => "Unblock a key",
            Self::Reset => "Reset a key",
            Self::Override => "Give a key another quota",
            Self::EndOverride => "End the override of a key",
            Self::Switch => "Switch a gate",
            Self::EndSwitch => "End the switch of a gate",
        }
    }

    /// Returns whether the change is of one key.
    pub(super) const fn is_of_key(self) -> bool {
        !matches!(self, Self::Switch | Self::EndSwitch)
    }

    pub(super) const fn has_duration(self) -> bool {
        matches!(self, Self::Block | Self::Override | Self::Switch)
    }

    /// Returns what the change does.
    pub(super) const fn consequence(self) -> &'static str {
        match self {
            Self::Block => {
                "Every check of the key at this gate is denied until the block ends. Its usage stays."
            }
            Self::Unblock => {
                "Lifts the block, and removes the denials that count towards a ban. The usage stays."
            }
            Self::Reset => {
                "Removes the usage, the holds, the counted denials and the block of the key at this gate."
            }
            Self::Override => {
                "The key has this quota at the gate, in the whole fleet, until the override ends."
            }
            Self::EndOverride => "The key has the gate's own quota again.",
            Self::Switch => "Applies to all keys of the gate, in the whole fleet.",
            Self::EndSwitch => "The gate follows its own quota again.",
        }
    }
}

impl Values {
    pub(super) fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// Returns the values that the form and the question repeat.
    pub(super) fn repeated(&self) -> Vec<(String, String)> {
        const NAMES: [&str; 11] = [
            "action",
            "gate",
            "key",
            "written",
            "duration",
            "mode",
            "algorithm",
            "limit",
            "units",
            "per",
            "reason",
        ];
        let value = |name: &&str| self.0.get(*name).map(|value| ((*name).to_owned(), value.clone()));
        NAMES.iter().filter_map(value).collect()
    }
}

impl Change {
    /// Reads a change from the form. `key` is that of the form.
    pub(super) fn new(action: Action, values: &Values, key: Option<Key>) -> Result<Self, String> {
        if values.0.values().any(|value| value.len() > MAX_VALUE_BYTES) {
            return Err(format!("a value is longer than {MAX_VALUE_BYTES} bytes"));
        }
        let gate = values.get("gate").trim().to_owned();
        if gate.is_empty() {
            return Err("the gate is missing".to_owned());
        }
        let reason = values.get("reason").trim().to_owned();
        if reason.is_empty() {
            return Err("the reason is missing: it is recorded in the audit log".to_owned());
        }
        let key = || key.clone().ok_or_else(|| "the key is missing".to_owned());
        let effect = match action {
            Action::Block => Effect::Block { key: key()?, lasts: required_duration(values)? },
            Action::Unblock => Effect::Unblock { key: key()? },
            Action::Reset => Effect::Reset { key: key()? },
            Action::Override => {
                Effect::Override { key: key()?, quota: quota(values)?, lasts: required_duration(values)? }
            }
            Action::EndOverride => Effect::EndOverride { key: key()? },
            Action::Switch => {
                let switch =
                    values.get("mode").parse().map_err(|error: tidegate::Error| error.to_string())?;
                Effect::Switch { switch, lasts: duration(values)? }
            }
            Action::EndSwitch => Effect::EndSwitch,
        };
        Ok(Self { action, gate, effect, reason })
    }

    /// Returns the question to confirm.
    pub(super) fn question(&self) -> String {
        let gate = &self.gate;
        match &self.effect {
            Effect::Block { key, lasts } => format!("Block {} at {gate} for {}?", key.shown, human(*lasts)),
            Effect::Unblock { key } => format!("Unblock {} at {gate}?", key.shown),
            Effect::Reset { key } => format!("Reset {} at {gate}?", key.shown),
            Effect::Override { key, quota, lasts } => {
                format!("Give {} at {gate} {} for {}?", key.shown, words::quota(quota), human(*lasts))
            }
            Effect::EndOverride { key } => {
                format!("Give {} at {gate} the gate's own quota again?", key.shown)
            }
            Effect::Switch { switch, lasts } => {
                let verb = match switch {
                    Switch::Open => "Admit every check at",
                    Switch::Closed => "Deny every check at",
                    _ => "Deny nothing, in shadow mode, at",
                };
                let lasts = lasts.map_or_else(
                    || ", until the switch is ended".to_owned(),
                    |lasts| format!(" for {}", human(lasts)),
                );
                format!("{verb} {gate}{lasts}?")
            }
            Effect::EndSwitch => format!("End the switch of {gate}?"),
        }
    }

    /// Returns the page to show after the change.
    pub(super) fn page_after(&self) -> String {
        let key = self.effect.key().and_then(|key| key.written.first());
        match key {
            Some(written) => format!("/key?written={}", words::query_value(written)),
            None => format!("/gate?name={}", words::query_value(&self.gate)),
        }
    }
}

impl Effect {
    pub(super) const fn key(&self) -> Option<&Key> {
        match self {
            Self::Block { key, .. }
            | Self::Unblock { key }
            | Self::Reset { key }
            | Self::Override { key, .. }
            | Self::EndOverride { key } => Some(key),
            Self::Switch { .. } | Self::EndSwitch => None,
        }
    }

    /// Returns the values of the change in words.
    pub(super) fn detail(&self) -> String {
        match self {
            Self::Block { lasts, .. } => format!("for {}", human(*lasts)),
            Self::Override { quota, lasts, .. } => format!("{} for {}", words::quota(quota), human(*lasts)),
            Self::Switch { switch, lasts: Some(lasts) } => format!("{switch} for {}", human(*lasts)),
            Self::Switch { switch, lasts: None } => switch.to_string(),
            Self::Unblock { .. } | Self::Reset { .. } | Self::EndOverride { .. } | Self::EndSwitch => {
                String::new()
            }
        }
    }
}

impl ChangePage {
    pub(super) fn new(
        frame: Frame,
        action: Action,
        values: Values,
        key: Option<&Key>,
        error: Option<String>,
    ) -> Self {
        let chosen = values.get("algorithm").to_owned();
        let algorithms =
            ALGORITHMS.iter().map(|algorithm| (algorithm.name, algorithm.name == chosen)).collect();
        Self {
            frame: Frame { title: action.title().to_owned(), tab: tab(action), ..frame },
            action,
            key: key.map(|key| key.shown.clone()),
            values,
            algorithms,
            error,
        }
    }
}

impl ConfirmPage {
    pub(super) fn new(
        frame: Frame,
        action: Action,
        values: &Values,
        change: &Change,
        followers: String,
    ) -> Self {
        let hidden = values.repeated();
        let query: Vec<String> =
            hidden.iter().map(|(name, value)| format!("{name}={}", words::query_value(value))).collect();
        Self {
            frame: Frame { title: action.title().to_owned(), tab: tab(action), ..frame },
            question: change.question(),
            consequence: action.consequence().to_owned(),
            followers,
            reason: change.reason.clone(),
            back: format!("/change?{}", query.join("&")),
            hidden,
            button: action.title(),
        }
    }
}

const fn tab(action: Action) -> Option<Tab> {
    Some(match action {
        Action::Block | Action::Unblock | Action::Reset => Tab::Keys,
        Action::Override | Action::EndOverride | Action::Switch | Action::EndSwitch => Tab::Overrides,
    })
}

fn duration(values: &Values) -> Result<Option<Duration>, String> {
    let text = values.get("duration").trim();
    if text.is_empty() {
        return Ok(None);
    }
    let parsed = humantime::parse_duration(text);
    let parsed =
        parsed.map_err(|error| format!("invalid time `{text}`: {error}; write such as 15m, 1h30m or 7d"))?;
    match parsed {
        Duration::ZERO => Err("the time is zero".to_owned()),
        parsed if parsed > MAX_DURATION => Err("the time is longer than ten years".to_owned()),
        parsed => Ok(Some(parsed)),
    }
}

fn required_duration(values: &Values) -> Result<Duration, String> {
    duration(values)?.ok_or_else(|| "the time is missing: write such as 15m, 1h30m or 7d".to_owned())
}

/// Reads a quota: an algorithm, its limit, and for rates and windows the units and the time.
fn quota(values: &Values) -> Result<Quota, String> {
    let name = values.get("algorithm");
    let algorithm = ALGORITHMS.into_iter().find(|algorithm| algorithm.name == name);
    let algorithm = algorithm.ok_or_else(|| format!("no algorithm is named `{name}`"))?;
    let number = |field: &str, what: &str| {
        let text = values.get(field).trim();
        text.parse::<u64>().map_err(|_| format!("invalid {what} `{text}`: write a whole number"))
    };
    let limit = number("limit", "limit")?;
    let per = || {
        let text = values.get("per").trim();
        humantime::parse_duration(text)
            .map_err(|error| format!("invalid time `{text}`: {error}; write such as 1s, 1m or 1h"))
    };
    let quota = match algorithm.parameters {
        Parameters::Rate => {
            let units = if values.get("units").trim().is_empty() { limit } else { number("units", "units")? };
            let rate = Rate::try_new(units, per()?).map_err(|error| error.to_string())?;
            Quota::with_rate(algorithm, limit, rate)
        }
        Parameters::Window => Quota::with_window(algorithm, limit, per()?),
        Parameters::Count => Quota::with_count(algorithm, limit),
    };
    quota.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(pairs: &[(&str, &str)]) -> Values {
        Values(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    fn key() -> Option<Key> {
        Key::of_written("user:42")
    }

    #[test]
    fn change_is_read_and_asked_for() {
        let block = values(&[("gate", "login"), ("duration", "1h30m"), ("reason", "abuse")]);
        let change = Change::new(Action::Block, &block, key()).unwrap();
        assert_eq!(change.question(), "Block user:42 at login for 1h 30m?");
        assert_eq!(change.page_after(), "/key?written=user%3A42");

        let bucket = [
            ("gate", "login"),
            ("duration", "1d"),
            ("reason", "r"),
            ("algorithm", "token_bucket"),
            ("limit", "10"),
            ("per", "1m"),
        ];
        let change = Change::new(Action::Override, &values(&bucket), key()).unwrap();
        assert_eq!(change.question(), "Give user:42 at login 10 at once, refilled 10/min for 1d?");

        let switch = values(&[("gate", "a b"), ("mode", "closed"), ("reason", "incident 7")]);
        let change = Change::new(Action::Switch, &switch, None).unwrap();
        assert_eq!(change.question(), "Deny every check at a b, until the switch is ended?");
        assert_eq!(change.page_after(), "/gate?name=a+b");
    }

    #[test]
    fn incomplete_or_odd_values_are_rejected() {
        let valid = [
            ("gate", "login"),
            ("duration", "1h"),
            ("reason", "r"),
            ("algorithm", "fixed_window"),
            ("limit", "1"),
            ("per", "1s"),
        ];
        let with = |name: &str, value: &str| {
            let mut values = values(&valid);
            values.0.insert(name.to_owned(), value.to_owned());
            values
        };
        assert!(Change::new(Action::Override, &values(&valid), key()).is_ok());
        let long = "x".repeat(MAX_VALUE_BYTES + 1);
        for (name, value) in [
            ("gate", " "),
            ("reason", ""),
            ("duration", ""),
            ("duration", "soon"),
            ("duration", "0s"),
            ("duration", "11years"),
            ("algorithm", "x"),
            ("limit", "0"),
            ("limit", "-1"),
            ("limit", "1.5"),
            ("per", ""),
            ("per", "0s"),
            ("reason", &long),
        ] {
            assert!(Change::new(Action::Override, &with(name, value), key()).is_err(), "{name}={value}");
        }
        assert!(Change::new(Action::Block, &values(&valid), None).is_err());
        assert!(Change::new(Action::Switch, &with("mode", "off"), None).is_err());
        assert_eq!(Action::parse("forget"), None);
    }
}
