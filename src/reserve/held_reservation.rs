//! The result of a reservation whose charges the store holds: the decision, and the token if it was admitted.

use std::time::Duration;

use super::format::{Charge, Content, Id, TokenItem};
use super::token::Token;
use super::{ids, settling};
use crate::decision::{AllDecision, Decision, Source};
use crate::error::Error;
use crate::pipeline::request::Request;
use crate::pipeline::{Pipeline, UnheldCharge};
use crate::quota::reference::holds::NewHold;

/// The result of [`Limiter::reserve`](crate::Limiter::reserve): the store holds the charges until a process settles them by
/// the token, or until they end. A [`Reservation`](crate::Reservation) is settled by the process that made it.
#[must_use = "a reservation that is never settled stays charged until its hold ends"]
#[derive(Clone, Debug)]
pub struct HeldReservation {
    decision: AllDecision,
    token: Option<Token>,
}

impl HeldReservation {
    /// Returns whether all checks are admitted. If not, nothing was charged.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        self.decision.is_allowed()
    }

    /// Returns the decision on all checks.
    pub const fn decision(&self) -> &AllDecision {
        &self.decision
    }

    /// Returns the token by which the reservation is settled, or `None` if it was denied.
    #[must_use]
    pub const fn token(&self) -> Option<&Token> {
        self.token.as_ref()
    }

    /// Returns the decision, and the token if it is an admission.
    pub fn into_parts(self) -> (AllDecision, Option<Token>) {
        (self.decision, self.token)
    }
}

/// Decides the requests, holds their charges, and makes the token.
pub(super) async fn reserve(
    pipeline: &Pipeline,
    requests: Vec<Request<'static>>,
    (id, ttl_ms, is_refunded): (Id, u64, bool),
) -> Result<HeldReservation, Error> {
    let hold = NewHold { id: id.text(), ttl_us: ttl_ms * 1_000, is_refunded };
    let (decision, requests) = pipeline.reserve(requests, &hold).await?;
    let is_allowed = decision.is_allowed();
    let decided = requests.iter().zip(decision.each_alone());
    let item = |(request, decision)| token_item(request, decision, is_allowed);
    let items = decided.map(item).collect::<Result<Vec<_>, _>>()?;
    let is_unheld = items.iter().any(TokenItem::is_unheld);
    let issuer = is_unheld.then_some(pipeline.unheld.issuer);
    let content = Content { id, ttl_ms, is_refunded, issuer, is_signed: false, items };
    if !is_allowed {
        // Gates in shadow mode are charged apart from the others. A closed switch lets them only peek: a hold that
        // exists then is that of an earlier attempt with the same id.
        let is_peek =
            decision.each_alone().iter().any(|one| one.source() == Source::Switch && !one.is_allowed());
        if !is_peek && content.items.iter().any(|item| item.charge == Charge::HeldApart) {
            let _ = settling::settle_content(pipeline, &content, &vec![0; content.items.len()]).await;
        }
        let decided = requests.iter().zip(decision.each_alone()).zip(&content.items);
        for ((request, decision), _) in decided.filter(|(_, item)| item.charge == Charge::LocalApart) {
            let stamp = pipeline.stamp_of_charge(request, decision);
            let _ = pipeline.settle_charge(request, decision, stamp.as_ref(), 0).await;
        }
        return Ok(HeldReservation { decision, token: None });
    }
    if is_unheld {
        let decided = requests.into_iter().zip(decision.each_alone()).enumerate();
        let unheld = decided.filter(|(index, _)| content.items[*index].is_unheld());
        let charge = |(index, (request, decision)): (usize, (Request<'_>, &Decision))| UnheldCharge {
            index,
            stamp: pipeline.stamp_of_charge(&request, decision),
            decision: decision.clone(),
            request: request.into_owned(),
        };
        pipeline.unheld.insert(id.0, unheld.map(charge).collect(), Duration::from_millis(ttl_ms));
    }
    Ok(HeldReservation { decision, token: Some(Token::new(content, &pipeline.secrets)) })
}

/// Returns the part of a token about a check that was decided.
fn token_item(request: &Request<'_>, decision: &Decision, is_allowed: bool) -> Result<TokenItem, Error> {
    let target = request.target()?;
    let info = &target.gate;
    let charge = charge(request, decision, is_allowed);
    let limit = info.quota.limit();
    let units = match charge {
        Charge::Held | Charge::HeldApart | Charge::Local | Charge::LocalApart => request.cost,
        // Redis was called for it, and its reply was perhaps lost.
        Charge::Uncharged | Charge::UnchargedApart
            if decision.source() == Source::Open && request.cost <= limit =>
        {
            request.cost
        }
        Charge::Uncharged | Charge::UnchargedApart | Charge::Exempt => 0,
    };
    let key = info.prefix.encoded(&request.key).into();
    Ok(TokenItem { gate: info.name, quota: info.quota, key, hash_tag: target.hash_tag, units, charge })
}

fn charge(request: &Request<'_>, decision: &Decision, is_allowed: bool) -> Charge {
    let is_shadow = request.gate.is_shadow;
    match decision.source() {
        _ if request.cost == 0 => Charge::Exempt,
        Source::Switch => Charge::Exempt,
        // Another gate denied, so only those in shadow mode were charged.
        _ if !is_allowed && !is_shadow => Charge::Exempt,
        // A check that the gate would have denied is not charged.
        _ if decision.is_shadow() => Charge::Exempt,
        Source::Redis | Source::Memory if is_shadow => Charge::HeldApart,
        Source::Redis | Source::Memory => Charge::Held,
        Source::Local if is_shadow => Charge::LocalApart,
        Source::Local => Charge::Local,
        _ if is_shadow => Charge::UnchargedApart,
        _ => Charge::Uncharged,
    }
}

/// Returns the id of a reservation that is repeated: the same for the same text, keys, costs, ttl and end.
pub(super) fn derived_id(
    text: &[u8],
    requests: &[Request<'_>],
    ttl_ms: u64,
    is_refunded: bool,
) -> Result<Id, Error> {
    let mut parts = vec![ttl_ms.to_be_bytes().to_vec(), vec![u8::from(is_refunded)]];
    for request in requests {
        parts.push(request.target()?.redis_key.into_bytes());
        parts.push(request.cost.to_be_bytes().to_vec());
    }
    Ok(ids::derived(text, parts.iter().map(Vec::as_slice)))
}
