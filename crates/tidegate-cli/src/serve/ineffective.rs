//! Warnings of settings that have a value and no effect.

use super::setting::Origin;
use crate::args::{ResponseHeaders, Serve};
use crate::connect::VARIABLE;

/// Settings of Redis, of its failure and of rule files. A demo has rules and limits of its own.
const UNUSED_IN_DEMO: [&str; 15] = [
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
const HEADER_NAMES: [&str; 3] = ["limit_header", "remaining_header", "reset_header"];
/// Variables that are also for other commands, which may be the reason that they are set.
const SHARED_VARIABLES: [&str; 2] = [VARIABLE, "TIDEGATE_NAMESPACE"];

/// Returns a warning for each reason. `origin` returns where a setting comes from.
pub(crate) fn warnings(serve: &Serve, origin: &dyn Fn(&str) -> Origin) -> Vec<String> {
    let set = |names: &[&str]| {
        let set = names.iter().map(|name| (*name, origin(name))).filter(|(_, origin)| is_chosen(origin));
        let set: Vec<String> = set.map(|(name, origin)| format!("`{name}` ({origin})")).collect();
        (!set.is_empty()).then(|| set.join(", "))
    };
    let in_demo = serve.demo.then(|| set(&UNUSED_IN_DEMO)).flatten();
    let of_headers = (serve.headers != ResponseHeaders::Ratelimit).then(|| set(&HEADER_NAMES)).flatten();
    let in_demo = in_demo.map(|names| {
        format!("settings without effect: {names}; a demo has its own rules, with limits in memory: remove `demo` to use them")
    });
    let of_headers = of_headers.map(|names| {
        format!("settings without effect: {names}; they name the headers of `headers: ratelimit`: add it")
    });
    let of_charges =
        (!serve.decisions.charge_denied).then(|| set(&["charge_denied_except_cached"])).flatten();
    let of_charges = of_charges.map(|names| {
        format!(
            "settings without effect: {names}; it leaves out charges of `charge_denied`: add that setting"
        )
    });
    in_demo.into_iter().chain(of_headers).chain(of_charges).collect()
}

fn is_chosen(origin: &Origin) -> bool {
    match origin {
        Origin::Default => false,
        Origin::Variable(name) => !SHARED_VARIABLES.contains(&&**name),
        Origin::Flag(_) | Origin::File(_) => true,
    }
}
