//! `/v1/check`, `/v1/peek` and `/v1/check_all`.

use std::time::Duration;

use axum::extract::State;
use tidegate_rules::Mode;

use super::decided::{Decided, RulesRequest};
use super::request::{CheckAllRequest, CheckRequest, GateCheck, Input};
use super::response::DecisionResponse;
use super::subject::{GateChecks, Subject};
use super::{examples, subject};
use crate::http_state::HttpState;
use crate::problem::Problem;
use crate::trace;

/// Decides a request, and charges it if it is admitted.
#[utoipa::path(post, path = "/v1/check", tag = "checks", operation_id = "check",
    request_body(content = CheckRequest, examples(
        ("rules" = (summary = "By rules", value = json!(examples::check_by_rules()))),
        ("gate" = (summary = "By the gate of a rule", value = json!(examples::check_by_gate()))),
        ("quota" = (summary = "By a gate that is not in the rules", value = json!(examples::check_by_quota()))))),
    responses((status = 200, description = "Admitted.", body = DecisionResponse),
        (status = 429, description = "Denied. Retry-After shows the wait.", body = DecisionResponse)))]
pub(super) async fn check(
    State(api): State<HttpState>,
    Input(request): Input<CheckRequest>,
) -> Result<Decided, Problem> {
    decide(&api, request, false).await
}

/// Returns the decision that a check would get, without charging.
#[utoipa::path(post, path = "/v1/peek", tag = "checks", operation_id = "peek",
    request_body(content = CheckRequest, examples(
        ("rules" = (summary = "By rules", value = json!(examples::check_by_rules()))),
        ("gate" = (summary = "By the gate of a rule", value = json!(examples::check_by_gate()))))),
    responses((status = 200, description = "What a check would get: see `allowed`.", body = DecisionResponse)))]
pub(super) async fn peek(
    State(api): State<HttpState>,
    Input(request): Input<CheckRequest>,
) -> Result<Decided, Problem> {
    Ok(decide(&api, request, true).await?.peeked())
}

/// Decides several checks in one atomic step: all are admitted and charged, or none is. Units that were used
/// (`charge_used`) are charged on their own.
#[utoipa::path(post, path = "/v1/check_all", tag = "checks", operation_id = "check_all",
    request_body(content = CheckAllRequest, examples(
        ("gates" = (summary = "By gates", value = json!(examples::check_all_by_gates()))),
        ("rules" = (summary = "By rules", value = json!(examples::check_all_by_rules()))))),
    responses((status = 200, description = "All are admitted.", body = DecisionResponse),
        (status = 429, description = "At least one denies. Retry-After shows the wait.", body = DecisionResponse)))]
pub(super) async fn check_all(
    State(api): State<HttpState>,
    Input(request): Input<CheckAllRequest>,
) -> Result<Decided, Problem> {
    let CheckAllRequest { domain, descriptors, checks } = request;
    let rules = api.service.rules();
    match Subject::new(domain, descriptors, checks, "`checks`")? {
        Subject::Rules(domain, descriptors) => {
            let request = RulesRequest { rules: &rules, domain: &domain, descriptors: &descriptors };
            by_rules(&api, request, Mode::check()).await
        }
        Subject::Checks(checks) => {
            let checks = GateChecks::new(&rules, &checks)?;
            let all = rules.limiter().check_all(checks.checks()).await?;
            Ok(Decided::of_gates(&api.service, checks.quota(all.binding_index()), &all))
        }
    }
}

async fn decide(api: &HttpState, request: CheckRequest, is_peek: bool) -> Result<Decided, Problem> {
    let CheckRequest { domain, descriptors, gate, key, cost, max_delay_us, quota } = request;
    let rules = api.service.rules();
    let check = match (gate, key) {
        (Some(gate), Some(key)) => Some(vec![GateCheck { gate, key, cost, quota }]),
        (Some(_), None) => {
            return Err(Problem::invalid("`gate` needs a `key`: send the key to limit; it can be empty"));
        }
        (None, Some(_)) => return Err(Problem::invalid("`key` needs a `gate`: send the name of the gate")),
        (None, None) if cost.is_some() || max_delay_us.is_some() || quota.is_some() => {
            return Err(Problem::invalid(
                "`cost`, `max_delay_us` and `quota` belong to `gate` and `key`: descriptors have `hits`, and rules a `cost`",
            ));
        }
        (None, None) => None,
    };
    match Subject::new(domain, descriptors, check, "`gate` and `key`")? {
        Subject::Rules(domain, descriptors) => {
            let request = RulesRequest { rules: &rules, domain: &domain, descriptors: &descriptors };
            by_rules(api, request, if is_peek { Mode::peek() } else { Mode::check() }).await
        }
        Subject::Checks(checks) => {
            let checks = GateChecks::new(&rules, &checks)?;
            let mut check = checks.first();
            if let Some(us) = max_delay_us {
                check = check.max_delay(Duration::from_micros(us));
            }
            let decision = if is_peek { check.peek().await? } else { check.check().await? };
            Ok(Decided::of_gate(&api.service, checks.quota(0), &decision))
        }
    }
}

async fn by_rules(api: &HttpState, request: RulesRequest<'_>, mode: Mode) -> Result<Decided, Problem> {
    let descriptors = subject::descriptors(request.descriptors);
    let decided = request.rules.decide(request.domain, &descriptors, &mode).await?;
    trace::record(&decided.decision);
    Ok(Decided::of_rules(&api.service, request, &decided.decision))
}
