//! The changes that an operator can make. The JSON API and the forms of the console both call [`apply`].

mod effect;
mod failed;
mod fields;
mod in_memory;
mod in_redis;
mod kinds;
mod search;
mod tracker;
mod values;

use std::time::Duration;

use http::StatusCode;
use tidegate::Quota;

pub(crate) use self::effect::Effect;
use self::failed::{Failed, problem};
pub(crate) use self::fields::ChangeFields;
use self::kinds::Key;
pub(crate) use self::kinds::Verb;
pub(crate) use self::tracker::ChangeTracker;
use super::access::Identity;
use super::audit::AuditAction;
use super::problem::Problem;
use super::state::AdminState;

/// A change that was made.
#[derive(Clone, Debug)]
pub(crate) struct Changed {
    pub(crate) effect: Effect,
    /// Why the audit log in Redis has no entry of the change, although it was made.
    pub(crate) audit_error: Option<String>,
}

/// Makes a change, and records it in the audit log with its result.
///
/// # Errors
///
/// If a field is wrong, the gate is not known, Redis failed, or the server is stopping. Of these, only failures of Redis
/// are recorded: the others change nothing, for any operator.
///
/// # Cancel safety
///
/// The change goes on in a task of its own if the future is dropped, so that it is recorded. The end of the server waits
/// for the task.
pub(crate) async fn apply(
    state: &AdminState,
    identity: &Identity,
    verb: Verb,
    fields: ChangeFields,
) -> Result<Changed, Problem> {
    let Some(under_way) = state.changes.begin() else {
        let text = "the service is stopping; nothing changed: repeat the change at another instance";
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, text));
    };
    let (state, identity) = (state.clone(), identity.clone());
    let changing = tokio::spawn(async move {
        let changed = apply_to_end(&state, &identity, verb, fields).await;
        drop(under_way);
        changed
    });
    changing.await.unwrap_or_else(|_| {
        let text = "the change has failed: see the log of the service";
        Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, text))
    })
}

async fn apply_to_end(
    state: &AdminState,
    identity: &Identity,
    verb: Verb,
    fields: ChangeFields,
) -> Result<Changed, Problem> {
    let (gate, force) = (fields.gate.clone(), fields.force());
    let reason = fields.reason()?;
    let rule_quota = state.rule_quota(&gate);
    let change = fields.change(verb, rule_quota)?;
    ensure_valid_name(state, &gate)?;
    let action = AuditAction {
        verb: verb.as_str(),
        gate: gate.clone(),
        key: change.key().map(|key| stored(state, key)).unwrap_or_default(),
        detail: change.detail(),
        reason,
    };
    let done = match &state.inspector {
        Some(inspector) => in_redis::apply(state, inspector, &gate, change, force).await,
        None => in_memory::apply(state, &gate, change, force).await,
    };
    let result = match &done {
        Ok(effect) => Ok(&*effect.result),
        Err(Failed::Before(problem)) => return Err(problem.clone()),
        Err(Failed::Limiter(error)) => Err(error),
    };
    let recorded = state.audit.record(identity, action, result).await;
    let audit_error = recorded.err().map(|error| error.to_string());
    match done {
        Ok(effect) => Ok(Changed { effect, audit_error }),
        Err(failed) => Err(failed.problem()),
    }
}

/// Returns the values of a change in words, such as `for 1h`, without making it.
///
/// # Errors
///
/// If a field is wrong, or no gate can have this name.
pub(crate) fn describe(state: &AdminState, verb: Verb, fields: &ChangeFields) -> Result<String, Problem> {
    fields.reason()?;
    let change = fields.change(verb, state.rule_quota(&fields.gate))?;
    ensure_valid_name(state, &fields.gate)?;
    Ok(change.detail())
}

/// Fails if no gate can have this name.
fn ensure_valid_name(state: &AdminState, gate: &str) -> Result<(), Problem> {
    let any = Quota::fixed_window(1, Duration::from_secs(1));
    state.limiter.try_gate(gate, any).map(drop).map_err(|error| problem(&error))
}

/// Returns the key as it is stored, for the audit log: under [`KeyMode::Hmac`](tidegate::KeyMode::Hmac), the log must
/// not contain what the other keys hide.
fn stored(state: &AdminState, key: &Key) -> String {
    match (key, &state.inspector) {
        (Key::Clear(key), Some(inspector)) => {
            inspector.stored_forms(key.as_bytes()).into_iter().next().unwrap_or_default()
        }
        (Key::Clear(key) | Key::Stored(key), _) => key.clone(),
    }
}

#[cfg(test)]
mod tests {
    use tidegate::Limiter;
    use tidegate_rules::Rules;

    use super::super::access::Role;
    use super::super::settings::Admin;
    use super::super::state::Listening;
    use super::*;
    use crate::service::RateLimitService;

    #[tokio::test]
    async fn change_of_a_server_that_is_stopping_is_not_made() {
        const RULES: &str =
            "{ domain: d, descriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 1 } }] }";
        let rules = Rules::parse("test.yaml", RULES).unwrap().bind(&Limiter::in_memory());
        let any = "127.0.0.1:0".parse().unwrap();
        let (admin, service) = (Admin::new(any), RateLimitService::new(rules));
        let listening = Listening { grpc: any, http: any, admin: any };
        let state = AdminState::new(service, &admin, None, ChangeTracker::new(), listening);
        let identity = Identity::named("ada", Role::Operator);
        let fields =
            ChangeFields { gate: "d.user".to_owned(), reason: "test".to_owned(), ..ChangeFields::default() };
        assert!(apply(&state, &identity, Verb::EndSwitch, fields.clone()).await.is_ok());
        state.changes.stop();
        let problem = apply(&state, &identity, Verb::EndSwitch, fields).await.unwrap_err();
        assert_eq!(problem.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(state.audit.entries(10).await.unwrap().len(), 1);
    }
}
