//! The limits of a tenant: reserving an estimate, and settling the usage.

use std::time::Duration;

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use serde_json::{Value, json};
use tidegate::quota::Calendar;
use tidegate::{AllDecision, Error, Gate, Limiter, Quota, Settlement, Token};
use tidegate_http::Headers;

use super::failure;

/// The ttl of a hold: after it, units of the month's budget return if no process has settled them.
pub(super) const LONGEST_JOB: Duration = Duration::from_secs(24 * 3_600);

const MINUTE: Duration = Duration::from_secs(60);
/// Prices in dollars per million tokens, which are micro-dollars per token.
const INPUT_PRICE: u64 = 3;
const OUTPUT_PRICE: u64 = 15;
const NAMES: [&str; 4] = ["requests", "input_tokens", "output_tokens", "micro_usd"];

/// Units of each limit, in the order of [`NAMES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Units([u64; 4]);

impl Units {
    /// The units of one request.
    pub(super) const fn used(input: u64, output: u64) -> Self {
        let price = input.saturating_mul(INPUT_PRICE).saturating_add(output.saturating_mul(OUTPUT_PRICE));
        Self([1, input, output, price])
    }

    pub(super) const fn input(self) -> u64 {
        self.0[1]
    }
}

#[derive(Clone)]
pub(super) struct Limits {
    limiter: Limiter,
    gates: [Gate; 4],
}

impl Limits {
    pub(super) fn new(limiter: Limiter) -> Self {
        let quotas = [
            Quota::fixed_window(60, MINUTE),
            Quota::fixed_window(4_000, MINUTE),
            Quota::fixed_window(2_000, MINUTE),
            Quota::calendar_window(10_000_000, Calendar::MONTH),
        ];
        // Units of ended holds return at the next look at the gate, also of `/usage`.
        let gates = [0, 1, 2, 3].map(|at| limiter.gate(NAMES[at], quotas[at]).holds());
        Self { limiter, gates }
    }

    /// Reserves all units or none. Returns the token and the headers of the response, or the response for a denial.
    pub(super) async fn reserve(
        &self,
        tenant: &str,
        units: Units,
        ttl: Duration,
    ) -> Result<(Token, HeaderMap), Response> {
        // A random id of this request: a reservation whose reply is lost is repeated, and charged once.
        let id: [u8; 16] = rand::random();
        let checks = || self.gates.iter().zip(units.0).map(|(gate, units)| gate.key(tenant).cost(units));
        let reserve = || self.limiter.reserve(checks()).ttl(ttl).back().id(id);
        let reserved = match reserve().await {
            Err(error) if error.is_unavailable() => reserve().await,
            reserved => reserved,
        };
        let (decision, token) = reserved.map_err(|error| undecided(&error))?.into_parts();
        let headers = self.headers(&decision);
        let token = token.ok_or_else(|| {
            let seconds = decision.retry_after().as_secs_f64().ceil();
            let message = format!("{}: the limit is used up", decision.binding().gate());
            let mut response = failure(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded", &message);
            response.headers_mut().insert(header::RETRY_AFTER, (seconds as u64).into());
            response.headers_mut().extend(headers.clone());
            response
        })?;
        Ok((token, headers))
    }

    /// Returns the headers by which clients of OpenAI know the limits of requests and of tokens.
    fn headers(&self, decision: &AllDecision) -> HeaderMap {
        let [requests, input, output] = [0, 1, 2].map(|at| (&self.gates[at], &decision.each_alone()[at]));
        let tokens = if input.1.is_tighter_than(output.1) { input } else { output };
        let units = [(requests, "requests"), (tokens, "tokens")];
        let of_unit = |((gate, decision), unit)| Headers::none().openai(true).of_unit(gate, unit, decision);
        units.into_iter().flat_map(of_unit).filter_map(|(name, value)| Some((name?, value))).collect()
    }

    /// Charges the usage. While Redis is away, the limiter settles in the background.
    pub(super) async fn settle(&self, token: &Token, used: Units) -> Result<Vec<Settlement>, Error> {
        self.limiter.commit(token, used.0).await
    }

    pub(super) fn charge(&self, token: Token, estimate: Units) -> Charge {
        Charge { limits: self.clone(), token: Some(token), estimate, used: None }
    }

    /// Returns the units that a tenant has used in each window.
    pub(super) async fn used(&self, tenant: &str) -> Result<Value, Error> {
        let mut used = serde_json::Map::new();
        for (name, gate) in NAMES.into_iter().zip(&self.gates) {
            let decision = gate.peek(tenant).await?;
            used.insert(name.to_owned(), json!(decision.limit() - decision.remaining()));
        }
        Ok(used.into())
    }
}

/// A reservation that is settled at the latest when this is dropped.
pub(super) struct Charge {
    limits: Limits,
    /// Taken when it is settled.
    token: Option<Token>,
    estimate: Units,
    used: Option<Units>,
}

impl Charge {
    pub(super) const fn estimate(&self) -> Units {
        self.estimate
    }

    /// Sets the usage so far. Without it, all units are returned.
    pub(super) const fn set_used(&mut self, used: Units) {
        self.used = Some(used);
    }

    pub(super) async fn settle(mut self) {
        if let Some(token) = self.token.take() {
            settle(&self.limits, &token, self.used).await;
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some(token) = self.token.take() {
            let (limits, used) = (self.limits.clone(), self.used);
            // If the process ends first, the hold ends after its ttl.
            tokio::spawn(async move { settle(&limits, &token, used).await });
        }
    }
}

async fn settle(limits: &Limits, token: &Token, used: Option<Units>) {
    let settled = match used {
        Some(used) => limits.settle(token, used).await,
        None => limits.limiter.cancel(token).await,
    };
    if let Err(error) = settled {
        eprintln!("not settled: {error}");
    }
}

fn undecided(error: &Error) -> Response {
    if error.is_over_capacity() {
        let gate = error.gate().unwrap_or_default();
        let message = format!("{gate}: the limit is lower than this request; lower max_tokens");
        return failure(StatusCode::BAD_REQUEST, "rate_limit_exceeded", &message);
    }
    failure(StatusCode::SERVICE_UNAVAILABLE, error.kind(), &error.cause().to_string())
}
