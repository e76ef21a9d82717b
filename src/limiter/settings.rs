//! The settings of a limiter and its gates, in a configuration file of the service that uses them.

use std::collections::BTreeMap;
use std::fmt;
use std::slice;
use std::str::FromStr;
use std::time::Duration;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer};

use crate::error::Error;
use crate::error::redact::RedactedUrl;
use crate::limiter::Limiter;
use crate::limiter::builder::Builder;
use crate::limiter::gate::Gate;
use crate::local::on_failure::OnFailure;
use crate::quota::serde::text_or_map;
use crate::quota::{Quota, text};

/// The settings of a limiter and its gates, as a part of a service's own configuration (feature `serde`). A file, the
/// environment or any other source that serde reads can have them.
///
/// | field | default | |
/// | --- | --- | --- |
/// | `redis` | | the URL: [`Builder::url`]; or `cluster`, a list of URLs (feature `cluster`), or `sentinel` with `urls` and `name` |
/// | `namespace` | `tidegate` | [`Builder::namespace`] |
/// | `deadline` | `100ms` | [`Builder::deadline`], as text |
/// | `on_failure` | `local` | `local`, `open`, `closed` or `error`: [`Builder::on_failure`] |
/// | `gates` | | the gates by their names, each a limit as text, or `quota`, `on_failure` and `shadow` |
///
/// An unknown field or value is an error that names the known ones.
///
/// ```
/// use serde::Deserialize;
/// use tidegate::Settings;
///
/// #[derive(Deserialize)]
/// struct Config {
///     port: u16,
///     limits: Settings,
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config: Config = serde_json::from_str(
///     r#"{
///         "port": 8080,
///         "limits": {
///             "redis": "redis://127.0.0.1:6379",
///             "namespace": "shop",
///             "deadline": "50ms",
///             "gates": {
///                 "login": "5/min burst 5",
///                 "search": { "quota": "100/min", "shadow": true, "on_failure": "open" }
///             }
///         }
///     }"#,
/// )?;
/// let limiter = config.limits.builder().build()?;
/// let login = config.limits.gate(&limiter, "login")?;
/// # let login = config.limits.gate(&config.limits.builder().in_memory().build()?, "login")?;
/// assert!(login.check("user:42").await?.is_allowed());
///
/// let error = config.limits.gate(&limiter, "logins").unwrap_err();
/// assert_eq!(error.to_string(), "the settings have no gate `logins`, but `login`, `search`");
/// # Ok(()) }
/// ```
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    redis: Option<Redis>,
    namespace: Option<String>,
    deadline: Option<Time>,
    on_failure: Option<OnFailure>,
    gates: BTreeMap<String, GateSettings>,
}

#[derive(Clone)]
struct Redis(Endpoint);

#[derive(Clone, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum Endpoint {
    /// A text, and not a map.
    #[serde(skip)]
    Url(String),
    #[cfg(feature = "cluster")]
    Cluster(Vec<String>),
    Sentinel {
        urls: Vec<String>,
        name: String,
    },
}

/// A gate of the settings.
#[derive(Clone, Debug)]
struct GateSettings(GateFields);

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GateFields {
    quota: Quota,
    #[serde(default)]
    on_failure: Option<OnFailure>,
    #[serde(default)]
    shadow: bool,
}

#[derive(Clone, Copy)]
struct Time(Duration);

impl Settings {
    /// Returns a builder of the limiter with these settings. Settings that belong into no file, such as an observer or a
    /// secret, can be added.
    pub fn builder(&self) -> Builder {
        let mut builder = Limiter::builder();
        builder = match &self.redis {
            None => builder,
            Some(Redis(Endpoint::Url(url))) => builder.url(url),
            #[cfg(feature = "cluster")]
            Some(Redis(Endpoint::Cluster(urls))) => builder.cluster(urls),
            Some(Redis(Endpoint::Sentinel { urls, name })) => {
                builder.sentinel(urls.iter().map(String::as_str), name)
            }
        };
        if let Some(namespace) = &self.namespace {
            builder = builder.namespace(namespace);
        }
        if let Some(Time(deadline)) = self.deadline {
            builder = builder.deadline(deadline);
        }
        builder.on_failure(self.on_failure.unwrap_or_default())
    }

    /// Returns a gate of these settings, on a limiter.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if the settings have no gate of this name, with those that they have; or if the name is invalid.
    pub fn gate(&self, limiter: &Limiter, name: &str) -> Result<Gate, Error> {
        let Some(GateSettings(gate)) = self.gates.get(name) else {
            let known: Vec<String> = self.gates.keys().map(|known| format!("`{known}`")).collect();
            let but = if known.is_empty() { "" } else { ", but " };
            return Err(Error::config(format!(
                "the settings have no gate `{name}`{but}{}",
                known.join(", ")
            )));
        };
        let made = limiter.try_gate(name, gate.quota)?.shadow(gate.shadow);
        Ok(match gate.on_failure {
            Some(on_failure) => made.on_failure(on_failure),
            None => made,
        })
    }
}

/// Without the logins of the URLs.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let redis = self.redis.as_ref().map(|Redis(endpoint)| endpoint.urls());
        f.debug_struct("Settings").field("redis", &redis).field("gates", &self.gates).finish_non_exhaustive()
    }
}

impl Endpoint {
    fn urls(&self) -> Vec<String> {
        let urls = match self {
            Self::Url(url) => slice::from_ref(url),
            #[cfg(feature = "cluster")]
            Self::Cluster(urls) => urls,
            Self::Sentinel { urls, .. } => urls,
        };
        urls.iter().map(|url| RedactedUrl::new(url).to_string()).collect()
    }
}

impl From<Endpoint> for Redis {
    fn from(endpoint: Endpoint) -> Self {
        Self(endpoint)
    }
}

impl FromStr for Redis {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self, Error> {
        Ok(Self(Endpoint::Url(url.to_owned())))
    }
}

impl<'de> Deserialize<'de> for Redis {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text_or_map::<_, Endpoint, _>(
            deserializer,
            "a URL, such as \"redis://127.0.0.1:6379\", or a map with `cluster` or `sentinel`",
        )
    }
}

impl From<GateFields> for GateSettings {
    fn from(fields: GateFields) -> Self {
        Self(fields)
    }
}

impl FromStr for GateSettings {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Ok(Self(GateFields { quota: text.parse()?, on_failure: None, shadow: false }))
    }
}

impl<'de> Deserialize<'de> for GateSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text_or_map::<_, GateFields, _>(deserializer, "a limit, such as \"100/min\", or a map with `quota`")
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TimeText)
    }
}

struct TimeText;

impl Visitor<'_> for TimeText {
    type Value = Time;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a time, such as \"50ms\"")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Time, E> {
        text::duration(text).map(Time).map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(json: &str) -> Result<Settings, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn mistake_in_the_settings_is_an_error_that_shows_what_is_right() {
        for (json, expected) in [
            (r#"{"redsi": "x"}"#, "unknown field `redsi`, expected one of `redis`, `namespace`, `deadline`"),
            (r#"{"on_failure": "opn"}"#, "unknown variant `opn`, expected one of `local`, `error`, `open`"),
            (r#"{"redis": 6379}"#, "expected a URL, such as \"redis://127.0.0.1:6379\", or a map"),
            (r#"{"redis": {"sentinels": []}}"#, "unknown variant `sentinels`, expected"),
            (r#"{"redis": {"sentinel": {"urls": ["redis://h:1"]}}}"#, "missing field `name`"),
            (r#"{"deadline": 50}"#, "expected a time, such as \"50ms\""),
            (r#"{"deadline": "50"}"#, "no time `50`: a unit of time is missing: use s, min"),
            (r#"{"deadline": "50ms x"}"#, "`x` is not understood; write such as `50ms`"),
            (r#"{"gates": {"login": "5/mni"}}"#, "`mni` is no unit of time"),
            (r#"{"gates": {"login": 5}}"#, "expected a limit, such as \"100/min\", or a map with `quota`"),
            (r#"{"gates": {"login": {"shadow": true}}}"#, "missing field `quota`"),
            (
                r#"{"gates": {"login": {"quota": "5/min", "shadwo": true}}}"#,
                "expected one of `quota`, `on_failure`",
            ),
        ] {
            let error = settings(json).unwrap_err();
            assert!(error.contains(expected), "{json}: {error}");
        }
    }

    #[tokio::test]
    async fn settings_open_a_limiter_with_its_gates() {
        let json = r#"{
            "namespace": "shop",
            "deadline": "1.5s",
            "gates": { "login": "1/min", "tried": { "quota": "1/min", "shadow": true }, "Wrong": "1/min" }
        }"#;
        assert!(settings(json).is_err(), "a time has no fraction");
        let settings = settings(&json.replace("1.5s", "1500ms")).unwrap();
        let limiter = settings.builder().in_memory().build().unwrap();
        let gate = |name: &str| settings.gate(&limiter, name);
        for (name, second_is_allowed) in [("login", false), ("tried", true)] {
            let gate = gate(name).unwrap();
            assert!(gate.check("ada").await.unwrap().is_allowed());
            assert_eq!(gate.check("ada").await.unwrap().is_allowed(), second_is_allowed, "{name}");
            assert!(gate.redis_key("ada").unwrap().starts_with(&format!("shop:2:{name}:")));
        }
        assert!(gate("Wrong").unwrap_err().is_config());
        let unknown = gate("logins").unwrap_err().to_string();
        assert_eq!(unknown, "the settings have no gate `logins`, but `Wrong`, `login`, `tried`");
    }

    #[test]
    fn redis_is_a_url_or_sentinels_or_a_cluster() {
        let build = |redis: &str| settings(&format!(r#"{{"redis": {redis}}}"#)).unwrap().builder().build();
        for redis in [
            r#""redis://h:1""#,
            r#"{"sentinel": {"urls": ["redis://s:1"], "name": "main"}}"#,
            #[cfg(feature = "cluster")]
            r#"{"cluster": ["redis://n:1"]}"#,
        ] {
            assert!(build(redis).is_ok(), "{redis}");
        }
        for (redis, expected) in [
            (r#""htp://h:1""#, "did not parse"),
            (r#"{"sentinel": {"urls": [], "name": "main"}}"#, "no sentinel"),
            (r#"{"sentinel": {"urls": ["redis://s:1", "htp://s:2"], "name": "main"}}"#, "did not parse"),
            #[cfg(feature = "cluster")]
            (r#"{"cluster": []}"#, "no cluster node"),
            #[cfg(feature = "cluster")]
            (r#"{"cluster": ["redis://n:1", "htp://n:2"]}"#, "did not parse"),
        ] {
            let error = build(redis).unwrap_err();
            assert!(error.is_config() && error.to_string().contains(expected), "{redis}: {error}");
        }
    }

    #[test]
    fn debug_output_has_no_password() {
        for redis in [
            r#""redis://ann:quagga@h:1""#,
            r#"{"sentinel": {"urls": ["redis://s:1", "redis://ann:quagga@h:1"], "name": "main"}}"#,
        ] {
            let shown = format!("{:?}", settings(&format!(r#"{{"redis": {redis}}}"#)).unwrap());
            assert!(shown.contains("redis://h:1") && !shown.contains("quagga"), "{shown}");
        }
    }
}
