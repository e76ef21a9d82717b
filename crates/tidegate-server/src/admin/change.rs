//! The changes that an operator can make at the admin port. The JSON API and the forms of the console both call [`apply`],
//! which makes them by [`Changes`](tidegate::admin::Changes).

mod fields;
mod tracker;

use http::StatusCode;
use tidegate::Error;
use tidegate::admin::{Author, Change, Effect, Made, Refusal};

pub(crate) use self::fields::ChangeFields;
pub(crate) use self::tracker::ChangeTracker;
use super::access::Identity;
use super::problem::Problem;
use super::state::AdminState;

/// The changes that the port offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Block,
    Unblock,
    Reset,
    Override,
    EndOverride,
    Switch,
    EndSwitch,
}

impl Verb {
    pub(crate) const ALL: [Self; 7] = [
        Self::Block,
        Self::Unblock,
        Self::Reset,
        Self::Override,
        Self::EndOverride,
        Self::Switch,
        Self::EndSwitch,
    ];

    /// Returns its name in `/api/NAME` and in the forms of the console.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Unblock => "unblock",
            Self::Reset => "reset",
            Self::Override => "override",
            Self::EndOverride => "end_override",
            Self::Switch => "switch",
            Self::EndSwitch => "end_switch",
        }
    }
}

/// A change that was made.
#[derive(Clone, Debug)]
pub(crate) struct Changed {
    pub(crate) effect: Effect,
    /// Why the audit log in Redis has no entry of the change, although it was made.
    pub(crate) audit_error: Option<Error>,
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
    let Some(under_way) = state.tracker.begin() else {
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
    let (change, reason) = requested(state, verb, &fields)?;
    let author = Author { name: identity.name.clone(), role: identity.role.as_str().to_owned(), reason };
    let made = state.changes.make(change, &author).await.map_err(|refusal| refused(&refusal))?;
    state.audit.record(&made);
    let Made { effect, audit_error, .. } = made;
    Ok(Changed { effect: effect.map_err(|error| problem(&error))?, audit_error })
}

/// Returns the values of a change in words, such as `for 1h`, without making it.
///
/// # Errors
///
/// As [`apply`], as far as it fails without a change.
pub(crate) async fn describe(
    state: &AdminState,
    verb: Verb,
    fields: &ChangeFields,
) -> Result<String, Problem> {
    let (change, _) = requested(state, verb, fields)?;
    let checked = state.changes.check(change).await.map_err(|refusal| refused(&refusal))?;
    Ok(checked.change.action.detail())
}

/// Returns the change of the fields, and its reason.
fn requested(state: &AdminState, verb: Verb, fields: &ChangeFields) -> Result<(Change, String), Problem> {
    let reason = fields.reason()?;
    let gate = state.changed_gate(&fields.gate).map_err(|error| problem(&error))?;
    Ok((fields.change(verb, gate)?, reason))
}

/// Returns the error of a change that is not made, with what to do about it.
fn refused(refusal: &Refusal) -> Problem {
    let advice = match refusal {
        Refusal::Failed(error) => return problem(error),
        Refusal::UnknownGate(_) | Refusal::NoEffect(_) => {
            ". To change it anyway, set `force` to `true`, or tick the box of the form"
        }
        Refusal::NeedsQuota(_) => ": give `algorithm`, `limit` and `rate` or `window`",
        Refusal::Impossible(_) | Refusal::Unsearched(_) => "",
    };
    Problem::new(StatusCode::CONFLICT, format!("{refusal}{advice}").replace('\n', "; "))
}

fn problem(error: &Error) -> Problem {
    let status = match () {
        () if error.is_config() => StatusCode::BAD_REQUEST,
        () if error.is_corrupt_state() => StatusCode::CONFLICT,
        () => StatusCode::SERVICE_UNAVAILABLE,
    };
    Problem::new(status, error.to_string())
}

#[cfg(test)]
mod tests {
    use tidegate::Limiter;
    use tidegate::admin::Changes;
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
        let changes = Changes::new(service.rules().limiter());
        let state = AdminState::new(service, &admin, None, changes, ChangeTracker::new(), listening);
        let identity = Identity::named("ada", Role::Operator);
        let fields =
            ChangeFields { gate: "d.user".to_owned(), reason: "test".to_owned(), ..ChangeFields::default() };
        assert!(apply(&state, &identity, Verb::EndSwitch, fields.clone()).await.is_ok());
        state.tracker.stop();
        let problem = apply(&state, &identity, Verb::EndSwitch, fields).await.unwrap_err();
        assert_eq!(problem.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(state.audit.entries(10).await.unwrap().len(), 1);
    }
}
