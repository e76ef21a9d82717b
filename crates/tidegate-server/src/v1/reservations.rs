//! `/v1/reserve`, `/v1/commit` and `/v1/cancel`. A token holds all that a settle needs, so any server of the namespace,
//! and any service that links the library, can settle.

use std::ops::RangeInclusive;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use tidegate::{AllDecision, Check, HeldReservation, Limiter, Token};
use tidegate_rules::{Plan, PlannedCheck, RulesDecision};

use super::decided::{Decided, RulesRequest};
use super::request::{AtEnd, CancelRequest, CommitRequest, Input, ReserveRequest};
use super::response::{DecisionResponse, ReservationBody, SettledResponse};
use super::subject::{GateChecks, Subject};
use super::{examples, subject};
use crate::http_state::HttpState;
use crate::problem::Problem;

const DEFAULT_TTL_MS: u64 = 60_000;
/// One second to one day.
const TTL_MS: RangeInclusive<u64> = 1_000..=86_400_000;

/// The settings of a reservation.
struct Settings {
    ttl: Duration,
    at_end: AtEnd,
    id: Option<String>,
}

/// Charges units whose final number is known later.
///
/// With rules, one reservation holds all, also in a domain with `charge: each`. Rules with `quota_mode` cannot be
/// reserved.
#[utoipa::path(post, path = "/v1/reserve", tag = "reservations", operation_id = "reserve",
    request_body(content = ReserveRequest, examples(
        ("gates" = (summary = "By gates", value = json!(examples::reserve_by_gates()))),
        ("rules" = (summary = "By rules", value = json!(examples::reserve_by_rules()))))),
    responses((status = 200, description = "Admitted, with a `reservation` if something is held.", body = DecisionResponse),
        (status = 429, description = "Denied. Retry-After shows the wait.", body = DecisionResponse)))]
pub(super) async fn reserve(
    State(api): State<HttpState>,
    Input(request): Input<ReserveRequest>,
) -> Result<Decided, Problem> {
    let ReserveRequest { domain, descriptors, checks, ttl_ms, at_end, id } = request;
    let ttl_ms = ttl_ms.unwrap_or(DEFAULT_TTL_MS);
    if !TTL_MS.contains(&ttl_ms) {
        let (min, max) = (TTL_MS.start(), TTL_MS.end());
        return Err(Problem::invalid(format!("`ttl_ms` is {ttl_ms}: use {min} (1 s) to {max} ms (24 h)")));
    }
    let ttl = Duration::from_millis(ttl_ms);
    let settings = Settings { ttl, at_end: at_end.unwrap_or(AtEnd::Keep), id };
    let rules = api.service.rules();
    match Subject::new(domain, descriptors, checks, "`checks`")? {
        Subject::Checks(checks) => {
            let checks = GateChecks::new(&rules, &checks)?;
            let units: Vec<u64> = checks.checks().map(Check::units).collect();
            let reserved = settings.reserve(rules.limiter(), checks.checks().cloned().collect()).await?;
            let all = reserved.decision();
            let decided = Decided::of_gates(&api.service, checks.quota(all.binding_index()), all);
            Ok(with_token(decided, reserved.token(), &units))
        }
        Subject::Rules(domain, descriptors) => {
            let request = RulesRequest { rules: &rules, domain: &domain, descriptors: &descriptors };
            let read = subject::descriptors(&descriptors);
            let mut plan = rules.plan(&domain, &read);
            ensure_no_quota_mode(&plan)?;
            plan.decide_peeks().await?;
            let planned: Vec<Check> = holds(&plan).map(PlannedCheck::check).collect();
            // A rule that denies every request leaves nothing to reserve.
            if planned.is_empty() || plan.static_denials().next().is_some() {
                let is_denied = plan.static_denials().next().is_some();
                let decision = plan.decision(!is_denied, [], []);
                let decided = Decided::of_rules(&api.service, request, &decision);
                return Ok(with_token(decided, None, &[]));
            }
            let units: Vec<u64> = planned.iter().map(Check::units).collect();
            let reserved = settings.reserve(rules.limiter(), planned).await?;
            let all = reserved.decision();
            let binding = holds(&plan).nth(all.binding_index()).and_then(PlannedCheck::quota);
            let decision = decision(plan, all);
            let decided = match all.is_allowed() {
                true => Decided::of_rules(&api.service, request, &decision),
                false => Decided::of_denied_group(&api.service, request, &decision, binding, all),
            };
            Ok(with_token(decided, reserved.token(), &units))
        }
    }
}

/// Adds the reservation to an admission, `null` if nothing is held.
fn with_token(mut decided: Decided, token: Option<&Token>, units: &[u64]) -> Decided {
    if decided.response.allowed {
        decided.response.reservation = Some(token.map(|token| ReservationBody::new(token, units)));
    }
    decided
}

/// A reservation is admitted or denied as a group. Rules in quota mode deny only together, so a request can pass by one
/// of them, and only that one would have to be held.
fn ensure_no_quota_mode(plan: &Plan<'_>) -> Result<(), Problem> {
    let checked = plan.checks().iter().filter_map(|check| plan.rule(check));
    let mut rules = checked.chain(plan.static_denials().filter_map(|(outcome, _)| outcome.rule()));
    rules.find(|rule| rule.is_quota()).map_or(Ok(()), |rule| {
        Err(Problem::invalid(format!(
            "the rule `{}` has `quota_mode`, and a reservation holds all of its checks or none: choose a rule by \
             `/v1/peek`, and reserve its gate by `checks`",
            rule.path()
        )))
    })
}

/// Charges the actual units of a reservation, and returns the others.
#[utoipa::path(post, path = "/v1/commit", tag = "reservations", operation_id = "commit",
    request_body(content = CommitRequest),
    responses((status = 200, description = "What was found for each hold.", body = SettledResponse)))]
pub(super) async fn commit(
    State(api): State<HttpState>,
    Input(request): Input<CommitRequest>,
) -> Result<Json<SettledResponse>, Problem> {
    let token: Token = request.token.parse()?;
    let settlements = api.service.rules().limiter().commit(&token, request.actuals).await?;
    Ok(Json(SettledResponse::new(&settlements)))
}

/// Returns all units of a reservation.
#[utoipa::path(post, path = "/v1/cancel", tag = "reservations", operation_id = "cancel",
    request_body(content = CancelRequest),
    responses((status = 200, description = "What was found for each hold.", body = SettledResponse)))]
pub(super) async fn cancel(
    State(api): State<HttpState>,
    Input(request): Input<CancelRequest>,
) -> Result<Json<SettledResponse>, Problem> {
    let token: Token = request.token.parse()?;
    let settlements = api.service.rules().limiter().cancel(&token).await?;
    Ok(Json(SettledResponse::new(&settlements)))
}

impl Settings {
    async fn reserve(self, limiter: &Limiter, checks: Vec<Check>) -> Result<HeldReservation, Problem> {
        let mut reserve = limiter.reserve(checks).ttl(self.ttl);
        if matches!(self.at_end, AtEnd::Back) {
            reserve = reserve.back();
        }
        if let Some(id) = self.id {
            reserve = reserve.id(id);
        }
        Ok(reserve.await?)
    }
}

/// Returns the checks of a reservation by rules. A rule in shadow mode denies nothing in it.
fn holds<'p, 'r>(plan: &'p Plan<'r>) -> impl Iterator<Item = &'p PlannedCheck<'r>> {
    plan.checks().iter().chain(plan.shadow_checks())
}

/// Returns the decision of the rules, whose checks were reserved in the order of [`holds`].
fn decision(plan: Plan<'_>, reserved: &AllDecision) -> RulesDecision {
    let (decisions, shadow) = reserved.each_alone().split_at(plan.checks().len());
    let (decisions, shadow) = (decisions.to_vec(), shadow.to_vec());
    plan.decision(reserved.is_allowed(), decisions, shadow.into_iter().map(Ok))
}
