//! The changes that an operator can make at the admin port. The JSON API and the forms of the console both call
//! [`AuditedChanges::apply`], which makes them by [`Changes`].

mod fields;

use std::pin::pin;

use http::StatusCode;
use tidegate::Error;
use tidegate::admin::{Author, Change, ChangedGate, Changes, Effect, Made, Refusal};
use tidegate_server::RateLimitService;
use tidegate_server::pages::{ChangeTracker, Identity, Problem};

pub(crate) use self::fields::ChangeFields;
use crate::audit::AuditLog;

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

/// The changes of a service, each with an entry in the audit log. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct AuditedChanges {
    pub(crate) service: RateLimitService,
    changes: Changes,
    tracker: ChangeTracker,
    pub(crate) log: AuditLog,
}

impl AuditedChanges {
    pub(crate) fn new(service: RateLimitService, tracker: ChangeTracker, log: AuditLog) -> Self {
        let changes = Changes::new(service.rules().limiter());
        Self { service, changes, tracker, log }
    }

    /// Returns the gate that an operator names: by its own name, or by its readable name or the path or name of an active rule.
    ///
    /// # Errors
    ///
    /// If several rules have the name.
    pub(crate) fn gate(&self, name: &str) -> Result<ChangedGate, Error> {
        let rules = self.service.rules();
        ChangedGate::named(name, rules.rules().gates_named(name).into_iter().map(ChangedGate::from))
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
        &self,
        identity: &Identity,
        verb: Verb,
        fields: ChangeFields,
    ) -> Result<Changed, Problem> {
        let under_way = self.tracker.begin().ok_or_else(stopping)?;
        let (changes, identity) = (self.clone(), identity.clone());
        let changing = tokio::spawn(async move {
            let changed = changes.apply_to_end(&identity, verb, fields).await;
            drop(under_way);
            changed
        });
        changing.await.unwrap_or_else(|_| {
            let text = "the change has failed: see the log of the service";
            Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, text))
        })
    }

    async fn apply_to_end(
        &self,
        identity: &Identity,
        verb: Verb,
        fields: ChangeFields,
    ) -> Result<Changed, Problem> {
        let (change, reason) = self.requested(verb, &fields)?;
        let author = Author { name: identity.name.clone(), role: identity.role.as_str().to_owned(), reason };
        let mut making = pin!(self.changes.make(change, &author));
        let made = tokio::select! {
            made = &mut making => made,
            () = self.tracker.searches_ended() => {
                self.changes.end_searches();
                match making.await {
                    Err(Refusal::Unsearched(_)) => return Err(stopping()),
                    made => made,
                }
            }
        };
        let made = made.map_err(|refusal| refused(&refusal))?;
        self.log.record(&made);
        let Made { effect, audit_error, .. } = made;
        Ok(Changed { effect: effect.map_err(|error| problem(&error))?, audit_error })
    }

    /// Returns the values of a change in words, such as `for 1h`, without making it.
    ///
    /// # Errors
    ///
    /// As [`apply`](Self::apply), as far as it fails without a change.
    pub(crate) async fn describe(&self, verb: Verb, fields: &ChangeFields) -> Result<String, Problem> {
        let (change, _) = self.requested(verb, fields)?;
        let checked = self.changes.check(change).await.map_err(|refusal| refused(&refusal))?;
        Ok(checked.change.action.detail())
    }

    /// Returns the change of the fields, and its reason.
    fn requested(&self, verb: Verb, fields: &ChangeFields) -> Result<(Change, String), Problem> {
        let reason = fields.reason()?;
        let gate = self.gate(&fields.gate).map_err(|error| problem(&error))?;
        Ok((fields.change(verb, gate)?, reason))
    }
}

fn stopping() -> Problem {
    let text = "the service is stopping; nothing changed: repeat the change at another instance";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, text)
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
    use tidegate_rules::Rules;
    use tidegate_server::Role;

    use super::*;

    #[tokio::test]
    async fn change_of_a_server_that_is_stopping_is_not_made() {
        const RULES: &str =
            "{ domain: d, descriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 1 } }] }";
        let rules = Rules::parse("test.yaml", RULES).unwrap().bind(&Limiter::in_memory());
        let (service, tracker) = (RateLimitService::new(rules), ChangeTracker::default());
        let changes = AuditedChanges::new(service, tracker.clone(), AuditLog::new(None, None));
        let identity = Identity::of_bearer("ada".to_owned(), Role::Operator);
        let fields =
            ChangeFields { gate: "d.user".to_owned(), reason: "test".to_owned(), ..ChangeFields::default() };
        assert!(changes.apply(&identity, Verb::EndSwitch, fields.clone()).await.is_ok());
        tracker.stop();
        let problem = changes.apply(&identity, Verb::EndSwitch, fields).await.unwrap_err();
        assert_eq!(problem.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(changes.log.entries(10).await.unwrap().len(), 1);
    }
}
