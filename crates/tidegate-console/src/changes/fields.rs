//! The fields of a change, from JSON or from a form.

use std::time::Duration;

use http::StatusCode;
use serde::{Deserialize, Deserializer};
use tidegate::admin::{Action, Change, ChangedGate, GivenKey, quota_of, visible};
use tidegate::algorithm::{ALGORITHMS, Definition};
use tidegate::{Quota, Rate};
use tidegate_server::pages::Problem;

use super::Verb;

/// The maximum length of a reason in bytes.
const MAX_REASON_BYTES: usize = 500;
const HOW_TO_WRITE_FOR: &str = "write 90s, 15m, 1h30m or 7d, at most ten years";
const HOW_TO_WRITE_LIMIT: &str = "write a whole number of units, such as 100";

/// All fields that a change can have; each verb uses some of them. A form has only texts; JSON can also have numbers and
/// Booleans.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ChangeFields {
    pub(crate) gate: String,
    pub(crate) key: Option<String>,
    /// `true` if the key is as Redis shows it.
    #[serde(deserialize_with = "text")]
    pub(crate) stored: Option<String>,
    /// How long the change lasts.
    #[serde(rename = "for")]
    pub(crate) duration: Option<String>,
    /// The mode of a switch: `open`, `closed` or `shadow`.
    pub(crate) to: Option<String>,
    /// The quota of an override. Without an algorithm, it is that of the gate's rule, with another limit.
    pub(crate) algorithm: Option<String>,
    #[serde(deserialize_with = "text")]
    pub(crate) limit: Option<String>,
    /// Such as `5/s`.
    pub(crate) rate: Option<String>,
    pub(crate) window: Option<String>,
    /// `true` to change a gate of which neither a rule nor state is known.
    #[serde(deserialize_with = "text")]
    pub(crate) force: Option<String>,
    pub(crate) reason: String,
}

impl ChangeFields {
    pub(super) fn reason(&self) -> Result<String, Problem> {
        match self.reason.trim() {
            "" => Err(wrong("`reason` is missing: write why the limit is changed, for the audit log")),
            reason if reason.len() > MAX_REASON_BYTES => {
                Err(wrong(&format!("`reason` has {} bytes: write at most {MAX_REASON_BYTES}", reason.len())))
            }
            reason => Ok(reason.to_owned()),
        }
    }

    /// Returns the change of a gate.
    pub(super) fn change(&self, verb: Verb, gate: ChangedGate) -> Result<Change, Problem> {
        self.ensure_used(verb)?;
        let action = match verb {
            Verb::Block => Action::Block {
                key: self.key()?,
                lasts: self.required_duration()?,
                quota: self.quota(&gate)?,
            },
            Verb::Unblock => Action::Unblock { key: self.key()? },
            Verb::Reset => Action::Reset { key: self.key()? },
            Verb::Override => Action::Override {
                key: self.key()?,
                quota: self.quota(&gate)?.ok_or_else(|| missing("limit", HOW_TO_WRITE_LIMIT))?,
                lasts: self.required_duration()?,
            },
            Verb::EndOverride => Action::EndOverride { key: self.key()? },
            Verb::Switch => {
                const HOW: &str = "write open, closed or shadow";
                let to = given(&self.to).ok_or_else(|| missing("to", HOW))?;
                let to = to.parse().map_err(|_| wrong(&format!("`to` is `{}`: {HOW}", shown(to))))?;
                Action::Switch { to, lasts: self.duration()? }
            }
            Verb::EndSwitch => Action::EndSwitch,
        };
        Ok(Change { gate, action, force: is_true("force", &self.force)? })
    }

    /// Rejects fields that would have no effect: the operator expects one.
    fn ensure_used(&self, verb: Verb) -> Result<(), Problem> {
        let is_of_key = !matches!(verb, Verb::Switch | Verb::EndSwitch);
        let has_quota = matches!(verb, Verb::Override | Verb::Block);
        let lasts = matches!(verb, Verb::Override | Verb::Block | Verb::Switch);
        let fields = [
            ("key", &self.key, is_of_key),
            ("stored", &self.stored, is_of_key),
            ("for", &self.duration, lasts),
            ("to", &self.to, verb == Verb::Switch),
            ("algorithm", &self.algorithm, has_quota),
            ("limit", &self.limit, has_quota),
            ("rate", &self.rate, has_quota),
            ("window", &self.window, has_quota),
        ];
        match fields.into_iter().find(|(_, value, is_used)| given(value).is_some() && !is_used) {
            Some((name, ..)) => {
                Err(wrong(&format!("`{name}` has no meaning for {}: leave it out", verb.as_str())))
            }
            None => Ok(()),
        }
    }

    fn key(&self) -> Result<GivenKey, Problem> {
        let key = self.key.as_deref().ok_or_else(|| missing("key", "write the key as services give it"))?;
        match is_true("stored", &self.stored)? {
            true => GivenKey::stored(key).map_err(|error| wrong(&format!("`key`: {error}"))),
            false => Ok(GivenKey::Plain(key.as_bytes().to_vec())),
        }
    }

    fn duration(&self) -> Result<Option<Duration>, Problem> {
        let Some(text) = given(&self.duration) else { return Ok(None) };
        let duration = humantime::parse_duration(text);
        duration.map(Some).map_err(|_| invalid("for", text, "a duration", HOW_TO_WRITE_FOR))
    }

    fn required_duration(&self) -> Result<Duration, Problem> {
        self.duration()?.ok_or_else(|| missing("for", HOW_TO_WRITE_FOR))
    }

    /// Returns the quota of the fields, or `None` if they contain none.
    fn quota(&self, gate: &ChangedGate) -> Result<Option<Quota>, Problem> {
        let (algorithm, rate, window) = (given(&self.algorithm), self.rate()?, self.window()?);
        let has_time = rate.is_some() || window.is_some();
        let Some(limit) = given(&self.limit) else {
            return match has_time || algorithm.is_some() {
                true => Err(missing("limit", HOW_TO_WRITE_LIMIT)),
                false => Ok(None),
            };
        };
        let number = limit.parse();
        let limit = number.map_err(|_| invalid("limit", limit, "a number of units", HOW_TO_WRITE_LIMIT))?;
        let quota = match (algorithm, gate.quota) {
            (None, Some(quota)) if !has_time => quota.try_with_limit(limit),
            (None, None) => {
                let how = format!("no rule with a quota has the gate: {}", how_to_write_algorithm());
                return Err(missing("algorithm", &how));
            }
            (algorithm, quota) => {
                let name = algorithm.or(quota.as_ref().map(Quota::algorithm)).unwrap_or_default();
                quota_of(definition(name)?, limit, rate, window)
            }
        };
        quota.map(Some).map_err(|error| wrong(&error.to_string()))
    }

    fn rate(&self) -> Result<Option<Rate>, Problem> {
        let Some(text) = given(&self.rate) else { return Ok(None) };
        text.parse().map(Some).map_err(|error: tidegate::Error| wrong(&format!("`rate`: {error}")))
    }

    fn window(&self) -> Result<Option<Duration>, Problem> {
        let Some(text) = given(&self.window) else { return Ok(None) };
        let window = humantime::parse_duration(text);
        window.map(Some).map_err(|_| invalid("window", text, "a duration", "write 60s, 15m, 1h or 7d"))
    }
}

/// Reads a text, or a number or a Boolean as its text.
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a text, a whole number or a Boolean")]
    enum Written {
        Text(String),
        Number(u64),
        Boolean(bool),
    }
    Ok(Option::<Written>::deserialize(deserializer)?.map(|written| match written {
        Written::Text(text) => text,
        Written::Number(number) => number.to_string(),
        Written::Boolean(is_true) => is_true.to_string(),
    }))
}

/// An empty field of a form is one that was not filled in.
fn given(field: &Option<String>) -> Option<&str> {
    field.as_deref().map(str::trim).filter(|text| !text.is_empty())
}

fn is_true(name: &str, field: &Option<String>) -> Result<bool, Problem> {
    match given(field) {
        Some("true" | "on" | "1") => Ok(true),
        Some("false" | "off" | "0") | None => Ok(false),
        Some(other) => Err(invalid(name, other, "a Boolean", "write true or false")),
    }
}

// The errors of fields: what is wrong with a value, and what to write instead.

/// The maximum number of characters of a value that an error repeats.
const MAX_SHOWN_CHARS: usize = 100;

fn definition(name: &str) -> Result<&'static Definition, Problem> {
    let found = ALGORITHMS.into_iter().find(|algorithm| algorithm.name == name);
    found.ok_or_else(|| invalid("algorithm", name, "an algorithm", &how_to_write_algorithm()))
}

fn how_to_write_algorithm() -> String {
    let names: Vec<&str> = ALGORITHMS.into_iter().map(|algorithm| algorithm.name).collect();
    format!("write one of {}", names.join(", "))
}

fn missing(field: &str, how: &str) -> Problem {
    wrong(&format!("`{field}` is missing: {how}"))
}

/// The value is not of this kind; `how` says what to write instead.
fn invalid(field: &str, value: &str, kind: &str, how: &str) -> Problem {
    wrong(&format!("`{field}`: \"{}\" is not {kind}: {how}", shown(value)))
}

/// Returns a value for an error: cut, and invisible characters escaped.
fn shown(value: &str) -> String {
    let (value, end) = match value.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((at, _)) => (&value[..at], "…"),
        None => (value, ""),
    };
    visible(value).into_owned() + end
}

fn wrong(text: &str) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(json: &str) -> ChangeFields {
        serde_json::from_str(json).unwrap()
    }

    fn of_rule(quota: Quota) -> ChangedGate {
        ChangedGate { name: "d.user".to_owned(), readable: None, is_in_rules: true, quota: Some(quota) }
    }

    #[test]
    fn quota_is_that_of_the_rule_with_another_limit_or_a_new_one() {
        let minute = Duration::from_secs(60);
        let rule = &of_rule(Quota::fixed_window(5, minute).aligned_to_clock());
        for (json, expected) in [
            (r#"{"limit":"50"}"#, Quota::fixed_window(50, minute).aligned_to_clock()),
            (r#"{"limit":50}"#, Quota::fixed_window(50, minute).aligned_to_clock()),
            (r#"{"limit":"50","window":"1h"}"#, Quota::fixed_window(50, 60 * minute)),
            (
                r#"{"limit":"9","algorithm":"token_bucket","rate":"3/m"}"#,
                Quota::token_bucket(9, Rate::per_minute(3)),
            ),
            (r#"{"limit":"9","algorithm":"in_flight","rate":""}"#, Quota::in_flight(9)),
        ] {
            assert_eq!(fields(json).quota(rule).unwrap(), Some(expected), "{json}");
        }
        assert_eq!(fields("{}").quota(rule).unwrap(), None);
        for json in [
            r#"{"limit":"0"}"#,
            r#"{"limit":"-1"}"#,
            r#"{"limit":"99999999999999999999"}"#,
            r#"{"limit":"5","window":"-1s"}"#,
            r#"{"limit":"5","window":"0s"}"#,
            r#"{"limit":"5","rate":"1/s"}"#,
            r#"{"limit":"5","algorithm":"token_bucket","window":"1s"}"#,
            r#"{"limit":"5","algorithm":"<b>","window":"1s"}"#,
            r#"{"limit":"5","algorithm":"token_bucket","rate":"0/s"}"#,
            r#"{"rate":"1/s"}"#,
        ] {
            assert!(fields(json).quota(rule).is_err(), "{json}");
        }
        let no_rule = ChangedGate::default();
        assert!(fields(r#"{"limit":"50"}"#).quota(&no_rule).is_err(), "no rule and no algorithm");
    }

    #[test]
    fn field_without_a_meaning_is_rejected() {
        for (verb, json) in [
            (Verb::Unblock, r#"{"key":"a","for":"1h"}"#),
            (Verb::Switch, r#"{"key":"a","to":"open"}"#),
            (Verb::Switch, r#"{"to":"OPEN"}"#),
            (Verb::Switch, "{}"),
            (Verb::EndSwitch, r#"{"to":"open"}"#),
            (Verb::Block, r#"{"key":"a"}"#),
            (Verb::Block, r#"{"for":"1h"}"#),
            (Verb::Block, r#"{"key":"a","for":"99999999999999999999y"}"#),
            (Verb::Reset, r#"{"key":"a b","stored":"true"}"#),
            (Verb::Reset, r#"{"key":"a","stored":"yes"}"#),
            (Verb::EndSwitch, r#"{"force":"TRUE"}"#),
        ] {
            let rule = of_rule(Quota::fixed_window(5, Duration::from_secs(60)));
            assert!(fields(json).change(verb, rule).is_err(), "{verb:?} {json}");
        }
        assert!(serde_json::from_str::<ChangeFields>(r#"{"duration":"1h"}"#).is_err());
        assert!(fields(r#"{"reason":" "}"#).reason().is_err());
        assert!(fields(&format!(r#"{{"reason":"{}"}}"#, "x".repeat(500))).reason().is_ok());
        assert!(fields(&format!(r#"{{"reason":"{}"}}"#, "x".repeat(501))).reason().is_err());
    }

    #[test]
    fn error_has_the_value_and_what_to_write() {
        let rule = of_rule(Quota::fixed_window(5, Duration::from_secs(60)));
        for (verb, json, expected) in [
            (
                Verb::Block,
                r#"{"key":"a","for":"soon"}"#,
                "`for`: \"soon\" is not a duration: write 90s, 15m, 1h30m or 7d, at most ten years",
            ),
            (
                Verb::Block,
                r#"{"key":"a"}"#,
                "`for` is missing: write 90s, 15m, 1h30m or 7d, at most ten years",
            ),
            (Verb::Switch, r#"{"to":"close"}"#, "`to` is `close`: write open, closed or shadow"),
            (Verb::Switch, "{}", "`to` is missing: write open, closed or shadow"),
            (Verb::Unblock, r#"{"key":"a","for":"1h"}"#, "`for` has no meaning for unblock: leave it out"),
            (
                Verb::Override,
                r#"{"key":"a","limit":"ten"}"#,
                "`limit`: \"ten\" is not a number of units: write a whole number of units, such as 100",
            ),
            (
                Verb::Override,
                r#"{"key":"a","limit":"5","window":"\u202esoon"}"#,
                "`window`: \"\\u{202e}soon\" is not a duration: write 60s, 15m, 1h or 7d",
            ),
            (
                Verb::Override,
                r#"{"key":"a","limit":"5","algorithm":"token_bucket","rate":"5"}"#,
                "`rate`: no rate `5`: after the number of units comes a period, such as `/min`; write such as `5/s`",
            ),
            (
                Verb::Override,
                r#"{"key":"a","limit":"5","algorithm":"bucket"}"#,
                "`algorithm`: \"bucket\" is not an algorithm: write one of token_bucket, ",
            ),
        ] {
            let detail = fields(json).change(verb, rule.clone()).unwrap_err().detail;
            assert!(detail.starts_with(expected), "{json}: {detail}");
        }
        let long = fields(&format!(r#"{{"key":"a","for":"{}"}}"#, "x".repeat(10_000)));
        assert!(long.change(Verb::Block, rule).unwrap_err().detail.len() < 250);
        let reason = fields(&format!(r#"{{"reason":"{}"}}"#, "x".repeat(501))).reason().unwrap_err();
        assert_eq!(reason.detail, "`reason` has 501 bytes: write at most 500");
    }
}
