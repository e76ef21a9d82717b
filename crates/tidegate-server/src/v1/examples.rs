//! Requests of the document's examples. They suit the rules of `tidegate serve --demo`, or bring a quota.

use serde_json::{Value, json};

pub(super) fn check_by_rules() -> Value {
    json!({ "domain": "demo", "descriptors": [user()] })
}

pub(super) fn check_by_gate() -> Value {
    json!({ "gate": "demo.user", "key": "bob" })
}

pub(super) fn check_by_quota() -> Value {
    mail(2)
}

pub(super) fn check_all_by_gates() -> Value {
    json!({ "checks": [{ "gate": "demo.user", "key": "bob" }, mail(2)] })
}

pub(super) fn check_all_by_rules() -> Value {
    json!({ "domain": "demo", "descriptors": [user(), path()] })
}

pub(super) fn reserve_by_gates() -> Value {
    json!({ "checks": [mail(40)], "ttl_ms": 120_000, "at_end": "back" })
}

pub(super) fn reserve_by_rules() -> Value {
    json!({ "domain": "demo", "descriptors": [user()], "ttl_ms": 120_000 })
}

pub(super) fn acquire_by_gates() -> Value {
    json!({ "checks": [{ "gate": "exports", "key": "tenant:7", "quota": { "in_flight": 2 } }], "ttl_ms": 30_000 })
}

pub(super) fn acquire_by_rules() -> Value {
    json!({ "domain": "demo", "descriptors": [path()] })
}

fn user() -> Value {
    json!({ "entries": [{ "key": "user", "value": "bob" }] })
}

fn path() -> Value {
    json!({ "entries": [{ "key": "path", "value": "/search" }] })
}

fn mail(cost: u64) -> Value {
    let quota =
        json!({ "algorithm": "token_bucket", "requests_per_unit": 100, "unit": "minute", "burst": 200 });
    json!({ "gate": "mail", "key": "tenant:7", "cost": cost, "quota": quota })
}
