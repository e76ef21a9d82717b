//! The environment of a run: cores, and the versions of the servers and crates.

use serde_json::{Value, json};

use crate::measure::cores;
use crate::server::Target;

const LOCK: &str = include_str!("../Cargo.lock");

const PACKAGES: [&str; 12] = [
    "tidegate",
    "redis",
    "deadpool-redis",
    "tower-rate-limit-redis",
    "throttle-kit",
    "actix-extensible-rate-limit",
    "actix-limitation",
    "tower-redis-cell",
    "trypema",
    "governor",
    "tower_governor",
    "tower-rate-limiter",
];

pub(crate) fn machine(targets: &[std::sync::Arc<Target>]) -> Vec<(&'static str, Value)> {
    let crates: Vec<_> = PACKAGES
        .iter()
        .chain(cfg!(feature = "limitador").then_some(&"limitador"))
        .filter_map(|name| Some(format!("{name} {}", version(name)?)))
        .collect();
    let servers: Vec<_> =
        targets.iter().map(|target| format!("{} ({})", target.title, target.how())).collect();
    vec![
        ("cores", json!(cores())),
        ("processor", json!(processor())),
        ("servers", json!(servers.join("; "))),
        ("rust", json!(env!("RUSTC_VERSION"))),
        ("crates", json!(crates.join(", "))),
    ]
}

/// Returns the newest version in the lock file. Some peers depend on older versions of the same package.
fn version(package: &str) -> Option<&'static str> {
    let mut lines = LOCK.lines();
    let mut newest: Option<&str> = None;
    let number =
        |version: &str| -> Vec<u32> { version.split('.').filter_map(|part| part.parse().ok()).collect() };
    while let Some(line) = lines.next() {
        if line.strip_prefix("name = \"").and_then(|rest| rest.strip_suffix('"')) != Some(package) {
            continue;
        }
        let version = lines.next().and_then(|line| line.strip_prefix("version = \"")?.strip_suffix('"'));
        if version.map(number) > newest.map(number) {
            newest = version;
        }
    }
    newest
}

pub(crate) fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    model.map_or("unknown", |(_, name)| name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_file_has_every_package_and_newest_redis_is_used() {
        for package in PACKAGES {
            assert!(version(package).is_some(), "{package}");
        }
        assert!(version("redis").is_some_and(|version| version.starts_with("1.")));
    }
}
