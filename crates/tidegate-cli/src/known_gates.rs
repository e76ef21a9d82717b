//! Finds the gates and instances that exist, so that a mistyped name is not answered with success.

use std::collections::BTreeSet;

use tidegate::admin::Inspector;
use tidegate::{Limiter, Override, Quota, Rate};

use crate::failure::Failure;

/// The maximum gates that are read to find a name.
const MAX_GATES: usize = 10_000;
/// The maximum names in a message.
const MAX_LISTED: usize = 10;
/// The maximum length of a name that is compared, in bytes: the time is the product of both lengths.
const MAX_COMPARED_BYTES: usize = 64;
/// The maximum names that are compared.
const MAX_COMPARED_NAMES: usize = 1_000;

/// Fails if no gate can have this name. Calls no server.
pub(crate) fn ensure_valid(limiter: &Limiter, gate: &str) -> Result<(), Failure> {
    let any = Quota::token_bucket(1, Rate::per_second(1));
    Ok(limiter.try_gate(gate, any).map(drop)?)
}

/// Fails as [`ensure_valid`] does, and names the option for rules, which the command has.
pub(crate) fn ensure_valid_or_rule(limiter: &Limiter, gate: &str) -> Result<(), Failure> {
    ensure_valid(limiter, gate).map_err(|error| {
        Failure::usage(format!("{error}; if this is the name or path of a rule, add --rules PATH"))
    })
}

/// Fails if the gate has neither state nor an override. Reads the keys of the namespace until it finds one of
/// the gate.
pub(crate) async fn ensure_known(
    inspector: &Inspector,
    overrides: &[Override],
    gate: &str,
) -> Result<(), Failure> {
    let mut gates: BTreeSet<String> = overrides.iter().map(|entry| gate_of(entry).to_owned()).collect();
    let mut scan = inspector.scan(None);
    while !gates.contains(gate) && gates.len() < MAX_GATES {
        let Some(page) = scan.next().await? else {
            let known = gates.iter().map(String::as_str);
            let exists = match gates.is_empty() {
                true => "no gate has state".to_owned(),
                false => format!("gates with state: {}", list(known.clone())),
            };
            return Err(Failure::NoEffect(format!(
                "no gate `{gate}` in namespace {}{}; nothing changed\n{exists}\nfor the name or path of a rule, \
                 add --rules PATH; for a gate that has no state yet, add --force",
                inspector.namespace(),
                did_you_mean(gate, known),
            )));
        };
        gates.extend(page.names.into_iter().map(|name| name.gate));
    }
    Ok(())
}

/// Returns the number of live instances. Fails if there is none: nothing would follow the change.
pub(crate) async fn ensure_instances(inspector: &Inspector) -> Result<u64, Failure> {
    let instances = inspector.instances().await?;
    if instances > 0 {
        return Ok(instances);
    }
    let (namespace, others) = (inspector.namespace(), inspector.live_namespaces().await?);
    let known = others.iter().map(String::as_str);
    let exists = match others.is_empty() {
        true => "no namespace in this database has a live instance".to_owned(),
        false => format!("namespaces with live instances: {}", list(known.clone())),
    };
    Err(Failure::NoEffect(format!(
        "no live instance in namespace {namespace}{}; nothing changed\n{exists}\ninstances with \
         `Builder::instances` are not counted; to change it anyway, add --force",
        did_you_mean(namespace, known),
    )))
}

/// Tells how many instances are live. Also an instance that does not follow overrides is counted.
pub(crate) fn followers(instances: u64) -> String {
    match instances {
        0 => "no live instance is counted".to_owned(),
        1 => "1 live instance, which applies it within a second if it follows overrides".to_owned(),
        _ => {
            format!(
                "{instances} live instances, of which those that follow overrides apply it within a second"
            )
        }
    }
}

/// Returns the gate of an override.
pub(crate) fn gate_of(entry: &Override) -> &str {
    match entry {
        Override::Switch { gate, .. } | Override::Quota { gate, .. } => gate,
        _ => "",
    }
}

/// Returns a list of the first names, and the number of the others.
pub(crate) fn list<'a>(names: impl Iterator<Item = &'a str> + Clone) -> String {
    let shown: Vec<&str> = names.clone().take(MAX_LISTED).collect();
    match names.count().saturating_sub(MAX_LISTED) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Returns `; did you mean …?` with the most similar name, or nothing if none is similar.
pub(crate) fn did_you_mean<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    if name.len() > MAX_COMPARED_BYTES {
        return String::new();
    }
    let word = name.to_lowercase();
    let known = known.take(MAX_COMPARED_NAMES).filter(|known| known.len() <= MAX_COMPARED_BYTES);
    let near = known.map(|known| (strsim::damerau_levenshtein(&word, &known.to_lowercase()), known));
    match near.min_by_key(|(distance, _)| *distance) {
        Some((distance, known)) if distance <= 1 + known.chars().count() / 4 => {
            format!("; did you mean `{known}`?")
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_similar_names_are_suggested() {
        let known = || ["login", "api", "auth.auth_type-login"].into_iter();
        assert_eq!(did_you_mean("logn", known()), "; did you mean `login`?");
        assert_eq!(did_you_mean("Login", known()), "; did you mean `login`?");
        assert_eq!(did_you_mean("auth.auth_type_login", known()), "; did you mean `auth.auth_type-login`?");
        assert_eq!(did_you_mean("payments", known()), "");
    }

    #[test]
    fn only_short_names_and_the_first_of_many_are_compared() {
        let long = "l".repeat(MAX_COMPARED_BYTES + 1);
        assert_eq!(did_you_mean(&long, [&long[..], &long[1..]].into_iter()), "");
        assert_eq!(did_you_mean(&long[1..], [&*long].into_iter()), "");
        assert_ne!(did_you_mean(&long[1..], [&long[2..]].into_iter()), "");
        let others = std::iter::repeat_n("other", MAX_COMPARED_NAMES);
        assert_eq!(did_you_mean("logn", others.clone().chain(["login"])), "");
        assert_ne!(did_you_mean("logn", others.skip(1).chain(["login"])), "");
    }

    #[test]
    fn long_lists_are_cut() {
        let names: Vec<String> = (0..12).map(|index| format!("g{index}")).collect();
        assert!(list(names.iter().map(String::as_str)).ends_with("g9 and 2 more"));
    }
}
