//! Checks settings that need or exclude each other. clap knows the relations, but it does not expose them, and its messages
//! show flags and a usage, which do not help with a file.

use super::setting::Origin;
use crate::failure::Failure;

/// Settings that need another one.
const NEEDS: [(&str, &str); 8] = [
    ("grpc_certificate", "grpc_key"),
    ("grpc_key", "grpc_certificate"),
    ("grpc_client_ca", "grpc_certificate"),
    ("grpc_client_san", "grpc_client_ca"),
    ("admin_host", "admin_addr"),
    ("admin_behind_tls", "admin_addr"),
    ("tls_certificate", "tls_key"),
    ("tls_key", "tls_certificate"),
];
/// Settings that exclude each other.
const EXCLUDES: [(&str, &str); 2] = [("demo", "rules"), ("cluster", "sentinel")];

/// Rejects settings of the file or of the environment that lack another one, or exclude each other. `given`: the names and
/// origins of all settings that have a value. Mistakes among flags only are left to clap.
pub(crate) fn ensure_related(given: &[(String, Origin)]) -> Result<(), Failure> {
    let find = |name: &str| given.iter().find(|(given, _)| given == name);
    for (name, needed) in NEEDS {
        let Some(one) = find(name).filter(|one| !is_flag(one)) else { continue };
        if find(needed).is_none() {
            let one = shown(one);
            return Err(Failure::usage(format!(
                "{one} needs the setting `{needed}`: add it, or remove `{name}`"
            )));
        }
    }
    for (one, other) in EXCLUDES {
        let (Some(one), Some(other)) = (find(one), find(other)) else { continue };
        if !(is_flag(one) && is_flag(other)) {
            let (one, other) = (shown(one), shown(other));
            return Err(Failure::usage(format!("{one} cannot be used with {other}: remove one of them")));
        }
    }
    Ok(())
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
