//! Checks settings that need or exclude each other. clap knows the relations, but it does not expose them, and its messages
//! show flags and a usage, which do not help with a file.

use super::setting::Origin;
use crate::args::{ResponseHeaders, Serve};
use crate::connect::VARIABLE;

/// Settings that need another one.
const NEEDS: [(&str, &str); 10] = [
    ("grpc_certificate", "grpc_key"),
    ("grpc_key", "grpc_certificate"),
    ("grpc_client_ca", "grpc_certificate"),
    ("grpc_client_san", "grpc_client_ca"),
    ("admin_host", "admin_addr"),
    ("admin_behind_tls", "admin_addr"),
    ("tls_certificate", "tls_key"),
    ("tls_key", "tls_certificate"),
    ("region", "peer"),
    ("peer", "region"),
];
/// Settings that exclude each other.
const EXCLUDES: [(&str, &str); 2] = [("demo", "rules"), ("cluster", "sentinel")];

/// Returns the mistakes of settings of the file or of the environment that lack another one, or exclude each other.
/// `given`: the names and origins of all settings that have a value. Mistakes among flags only are left to clap.
pub(crate) fn mistakes(given: &[(String, Origin)]) -> Vec<String> {
    let find = |name: &str| given.iter().find(|(given, _)| given == name);
    let needs = NEEDS.iter().filter_map(|(name, needed)| {
        let one = find(name).filter(|one| !is_flag(one) && find(needed).is_none())?;
        Some(format!("{} needs the setting `{needed}`: add it, or remove `{name}`", shown(one)))
    });
    let excludes = EXCLUDES.iter().filter_map(|(one, other)| {
        let (one, other) = (find(one)?, find(other)?);
        let is_left_to_clap = is_flag(one) && is_flag(other);
        (!is_left_to_clap)
            .then(|| format!("{} cannot be used with {}: remove one of them", shown(one), shown(other)))
    });
    needs.chain(excludes).collect()
}

fn is_flag((_, origin): &(String, Origin)) -> bool {
    matches!(origin, Origin::Flag(_))
}

/// Returns a setting as its place spells it.
fn shown((name, origin): &(String, Origin)) -> String {
    match origin {
        Origin::Flag(flag) => flag.clone(),
        origin => format!("the setting `{name}` ({origin})"),
    }
}

/// Settings of Redis, of its failure and of rule files. A demo has rules and limits of its own.
const UNUSED_IN_DEMO: [&str; 17] = [
    "region",
    "peer",
    "redis",
    "user",
    "password_file",
    "sentinel",
    "cluster",
    "tls_ca",
    "tls_certificate",
    "tls_key",
    "namespace",
    "hmac_secret_file",
    "deadline",
    "on_failure",
    "ready_needs_redis",
    "charge",
    "merge_domains",
];
/// Settings of the headers of envoyproxy/ratelimit.
const HEADER_NAMES: [&str; 4] = ["limit_header", "remaining_header", "reset_header", "wait_header"];
/// Variables that are also for other commands, which may be the reason that they are set.
const SHARED_VARIABLES: [&str; 2] = [VARIABLE, "TIDEGATE_NAMESPACE"];

/// Returns a warning for each reason. `origin` returns where a setting comes from.
pub(crate) fn warnings(serve: &Serve, origin: &dyn Fn(&str) -> Origin) -> Vec<String> {
    let unused = |is_unused: bool, names: &[&str], why: &str| {
        let set = names.iter().map(|name| (*name, origin(name))).filter(|(_, origin)| is_chosen(origin));
        let set: Vec<String> = set.map(|(name, origin)| format!("`{name}` ({origin})")).collect();
        let is_unused = is_unused && !set.is_empty();
        is_unused.then(|| format!("settings without effect: {}; {why}", set.join(", ")))
    };
    let of_demo = "a demo has its own rules, with limits in memory: remove `demo` to use them";
    let of_headers = "they name the headers of `headers: ratelimit`: add it";
    let has_names = serve.headers == ResponseHeaders::Ratelimit;
    let in_demo = unused(serve.demo, &UNUSED_IN_DEMO, of_demo);
    in_demo.into_iter().chain(unused(!has_names, &HEADER_NAMES, of_headers)).collect()
}

fn is_chosen(origin: &Origin) -> bool {
    match origin {
        Origin::Default => false,
        Origin::Variable(name) => !SHARED_VARIABLES.contains(&&**name),
        Origin::Flag(_) | Origin::File(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    use super::super::setting::{Kind, Setting, settings};
    use super::*;
    use crate::args::Cli;

    fn error_of(given: &[&Setting]) -> Option<ErrorKind> {
        let argument = |setting: &&Setting| match setting.kind {
            Kind::Switch => format!("--{}", setting.option),
            Kind::List if setting.name == "peer" => "--peer=us=redis://127.0.0.1:1".to_owned(),
            // An address has this form, too.
            Kind::One | Kind::List => format!("--{}=127.0.0.1:1", setting.option),
        };
        let arguments = ["tidegate".to_owned(), "serve".to_owned()].into_iter();
        let parsed = Cli::command().try_get_matches_from(arguments.chain(given.iter().map(argument)));
        parsed.err().map(|error| error.kind())
    }

    #[test]
    fn relations_are_those_of_the_arguments() {
        let settings = settings();
        let named = |name: &str| settings.iter().find(|setting| setting.name == name).unwrap();
        for setting in &settings {
            let is_listed = NEEDS.iter().any(|(name, _)| *name == setting.name);
            let is_missing = error_of(&[setting]) == Some(ErrorKind::MissingRequiredArgument);
            assert_eq!(is_listed, is_missing, "{}", setting.name);
        }
        for (one, other) in EXCLUDES {
            assert_eq!(
                error_of(&[named(one), named(other)]),
                Some(ErrorKind::ArgumentConflict),
                "{one} {other}"
            );
        }
    }
}
