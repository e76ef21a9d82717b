//! `/v1/acquire` and `/v1/release`. The store counts the units of a permit as those of the process that holds it, so a
//! permit ends with the server that gave it. Any server receives its release.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use tidegate::{Acquired, Permits};

use super::decided::{Decided, RulesRequest};
use super::request::{AcquireRequest, Input, ReleaseRequest};
use super::response::{DecisionResponse, PermitBody, ReleasedResponse};
use super::subject::{GateChecks, Subject};
use super::{examples, subject};
use crate::http_state::HttpState;
use crate::permits::PermitSlot;
use crate::problem::Problem;

const DEFAULT_TTL_MS: u64 = 60_000;
/// One hour.
const MAX_TTL_MS: u64 = 3_600_000;

/// Acquires units of in-flight limits, which this server holds until they are released.
#[utoipa::path(post, path = "/v1/acquire", tag = "in flight", operation_id = "acquire",
    request_body(content = AcquireRequest, examples(
        ("gates" = (summary = "By gates", value = json!(examples::acquire_by_gates()))),
        ("rules" = (summary = "By rules", value = json!(examples::acquire_by_rules()))))),
    responses((status = 200, description = "Admitted, with a `permit` if units are held.", body = DecisionResponse),
        (status = 429, description = "Denied. Retry-After is a hint.", body = DecisionResponse)))]
pub(super) async fn acquire(
    State(api): State<HttpState>,
    Input(request): Input<AcquireRequest>,
) -> Result<Decided, Problem> {
    let AcquireRequest { domain, descriptors, checks, ttl_ms } = request;
    let ttl_ms = ttl_ms.unwrap_or(DEFAULT_TTL_MS);
    if !(1..=MAX_TTL_MS).contains(&ttl_ms) {
        return Err(Problem::invalid(format!("`ttl_ms` is {ttl_ms}: use 1 to {MAX_TTL_MS} ms (1 h)")));
    }
    let subject = Subject::new(domain, descriptors, checks, "`checks`")?;
    // Before the units are acquired, which would have to be released.
    let slot = api.permits.slot().ok_or_else(|| Problem::too_many_permits(api.permits.max()))?;
    let rules = api.service.rules();
    let (mut decided, permits) = match subject {
        Subject::Checks(checks) => {
            let checks = GateChecks::new(&rules, &checks)?;
            let (all, permits) = parts(rules.limiter().acquire_all(checks.checks()).await?);
            (Decided::of_gates(&api.service, checks.quota(all.binding_index()), &all), permits)
        }
        Subject::Rules(domain, descriptors) => {
            let acquired = rules.acquire(&domain, &subject::descriptors(&descriptors)).await?;
            let (decision, permits) = parts(acquired);
            let request = RulesRequest { rules: &rules, domain: &domain, descriptors: &descriptors };
            (Decided::of_rules(&api.service, request, &decision), permits)
        }
    };
    if decided.response.allowed {
        decided.response.permit = Some(keep(&api, slot, permits, ttl_ms).await);
    }
    Ok(decided)
}

/// Returns the decision and the permits, which hold nothing if it is a denial.
fn parts<D>(acquired: Acquired<Permits, D>) -> (D, Permits) {
    match acquired {
        Acquired::Admitted(permits, decision) => (decision, permits),
        Acquired::Denied(decision) => (decision, Permits::default()),
    }
}

/// Keeps the permits of a client. Those that hold nothing take no room: any client could fill it with them, and there
/// is no limit that would stop it.
async fn keep(api: &HttpState, slot: PermitSlot, permits: Permits, ttl_ms: u64) -> Option<PermitBody> {
    let units = permits.counted_units();
    if units == 0 {
        return None;
    }
    let id = api.permits.keep(slot, permits, Duration::from_millis(ttl_ms)).await;
    Some(PermitBody { id, units, ttl_ms })
}

/// Releases a permit, at any server.
#[utoipa::path(post, path = "/v1/release", tag = "in flight", operation_id = "release",
    request_body(content = ReleaseRequest),
    responses((status = 200, description = "The units are free, or will be: within milliseconds, of a permit of another server within about a second.", body = ReleasedResponse)))]
pub(super) async fn release(
    State(api): State<HttpState>,
    Input(request): Input<ReleaseRequest>,
) -> Result<Json<ReleasedResponse>, Problem> {
    let confirmed = api.permits.release(&request.permit).await?;
    Ok(Json(ReleasedResponse { confirmed }))
}
