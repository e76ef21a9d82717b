//! The effective settings, for `--check` and for `/config` of the admin port. The text of `--check` is a valid
//! configuration file, with the origin of each setting.

use clap::ArgMatches;
use serde_json::{Value, json};

use super::arguments::MergedArguments;
use super::setting::{Kind, Origin, Setting, settings};
use crate::args::{Peer, Redis};
use crate::connect::PASSWORD_VARIABLE;
use crate::failure::Failure;
use crate::output::{Output, Text, Tone};
use crate::redis_url::{RedisUrl, redact_urls};

/// Prints all settings. `matches` are the parsed arguments of `serve`.
pub(crate) fn print(
    matches: &ArgMatches,
    merged: &MergedArguments,
    redis: &Redis,
    out: Output,
) -> Result<(), Failure> {
    let (mut lines, mut objects) = (Vec::new(), Vec::new());
    for setting in settings() {
        let values = values(&setting, matches, redis);
        let origin = merged.origin(&setting.name);
        let value = yaml(&values, setting.kind);
        let is_whole = match &*setting.name {
            "redis" => redis.given_urls().iter().all(RedisUrl::is_shown_whole),
            "peer" => peers(&setting, matches).all(|peer| peer.url.is_shown_whole()),
            _ => true,
        };
        // A setting without a value is a comment, so that the file remains valid. So is a part of a URL, which would lead
        // to another database, or without a login.
        let (value, shown) = match (values.is_empty(), is_whole) {
            (true, _) => (format!("# {}:", setting.name), "not set".to_owned()),
            (false, true) => (format!("{}: {value}", setting.name), origin.to_string()),
            (false, false) => (
                format!("# {}: {value}", setting.name),
                format!("{origin}: the login, the database and the options of the URL are not shown"),
            ),
        };
        lines.push(vec![Text::from(value), Text(Tone::Faint, format!("  # {shown}"))]);
        objects.push(json!({
            "name": setting.name,
            "variable": setting.variable(),
            "values": values,
            "origin": origin.to_string(),
        }));
    }
    if let Some(origin) = password_origin(merged, redis) {
        lines.push(vec![Text(Tone::Faint, format!("# the password of Redis is hidden: {origin}"))]);
    }
    out.print(&json!({ "settings": objects }), &lines)
}

/// Returns all settings by their names in the file: texts, lists of texts, and Booleans; `null` for one without a value.
pub(crate) fn shown(matches: &ArgMatches, redis: &Redis) -> Value {
    let shown = |setting: Setting| {
        let mut values = values(&setting, matches, redis);
        let value = match setting.kind {
            Kind::List => json!(values),
            Kind::Switch => json!(matches.get_flag(&setting.id)),
            Kind::One => json!(values.pop()),
        };
        (setting.name, value)
    };
    Value::Object(settings().into_iter().map(shown).collect())
}

/// Returns the values of a setting as text. The URLs of Redis are shown without passwords.
fn values(setting: &Setting, matches: &ArgMatches, redis: &Redis) -> Vec<String> {
    match (&*setting.name, setting.kind) {
        ("redis", _) => redis.given_urls().iter().map(ToString::to_string).collect(),
        ("peer", _) => peers(setting, matches).map(Peer::to_string).collect(),
        (_, Kind::Switch) => vec![matches.get_flag(&setting.id).to_string()],
        _ => {
            let raw = matches.get_raw(&setting.id);
            let texts = raw.into_iter().flatten().map(|value| value.to_string_lossy().into_owned());
            // A URL of Redis may be the value of another setting by mistake.
            texts.map(|text| redact_urls(text.clone(), [text].into_iter())).collect()
        }
    }
}

fn peers<'m>(setting: &Setting, matches: &'m ArgMatches) -> impl Iterator<Item = &'m Peer> {
    matches.get_many::<Peer>(&setting.id).into_iter().flatten()
}

/// Returns where the password of Redis is, unless a file has it, which is a setting.
fn password_origin(merged: &MergedArguments, redis: &Redis) -> Option<Origin> {
    if redis.password_file.is_some() {
        return None;
    }
    match redis.environment_login() {
        Some(_) => Some(Origin::Variable(PASSWORD_VARIABLE.to_owned())),
        None => merged.password.as_ref().map(|_| Origin::Variable("REDIS_AUTH".to_owned())),
    }
}

fn yaml(values: &[String], kind: Kind) -> String {
    let mut scalars: Vec<String> = values.iter().map(|value| scalar(value, kind)).collect();
    match scalars.len() {
        1 => scalars.remove(0),
        _ => format!("[{}]", scalars.join(", ")),
    }
}

/// Quotes a text, unless it is plain in YAML.
fn scalar(text: &str, kind: Kind) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-".contains(letter);
    let begins = |letter: char| letter.is_ascii_alphanumeric() || letter == '/';
    match kind == Kind::Switch || (text.starts_with(begins) && text.chars().all(is_plain)) {
        true => text.to_owned(),
        // Text in JSON is also text in YAML.
        false => serde_json::Value::from(text).to_string(),
    }
}
