//! Settling a reservation by its token.

use std::sync::Arc;

use futures_util::future::join_all;
use tokio::sync::oneshot;

use super::format::{Content, TokenItem};
use super::token::Token;
use crate::error::Error;
use crate::pipeline::{Pipeline, SettleCall, UnheldCharge, hold_of_item};
use crate::quota::algorithm::MAX_DEBT;
use crate::quota::reference::holds::NewHold;
use crate::quota::settlement::Settlement;
use crate::store::{SettleItem, Target};

type Settled = Result<Settlement, Error>;

/// Settles a token: `actuals` are the final units of each check.
pub(super) async fn settle(
    pipeline: &Arc<Pipeline>,
    token: &Token,
    actuals: Vec<u64>,
) -> Result<Vec<Settlement>, Error> {
    let content = token.verify(&pipeline.secrets)?;
    if actuals.len() != content.items.len() {
        return Err(Error::config(format!(
            "commit was given {} numbers for the {} checks of the reservation: give one for each, in their order",
            actuals.len(),
            content.items.len()
        )));
    }
    if content.issuer.is_none() {
        return settle_content(pipeline, content, &actuals).await;
    }
    // A charge without a hold is settled by writes that cannot be repeated. So the caller cannot cancel them.
    let (sender, settled) = oneshot::channel();
    let (settling, content) = (pipeline.clone(), content.clone());
    pipeline.spawn(async move {
        // The caller may have dropped its future.
        let _ = sender.send(settle_content(&settling, &content, &actuals).await);
    });
    settled.await.unwrap_or_else(|_| Err(Error::unavailable("the background thread has ended")))
}

/// Settles all checks, then returns the first error.
pub(super) async fn settle_content(
    pipeline: &Pipeline,
    content: &Content,
    actuals: &[u64],
) -> Result<Vec<Settlement>, Error> {
    let targets = content.items.iter().map(|item| target(pipeline, item));
    let targets = targets.collect::<Result<Vec<_>, _>>()?;
    let mut settled = settle_holds(pipeline, content, &targets, actuals).await;
    if content.issuer.is_some() {
        settle_unheld(pipeline, content, &targets, actuals, &mut settled).await;
    }
    let named = settled
        .into_iter()
        .zip(&content.items)
        .map(|(settled, item)| settled.map_err(|error| error.with_context(item.gate, item.key.as_bytes())));
    named.collect()
}

/// The call that settles a hold: the items, and for each the checks that it stands for.
struct HoldCall {
    call: SettleCall,
    checks: Vec<Vec<usize>>,
}

/// Settles the holds of the checks: those that are held together in one call.
async fn settle_holds(
    pipeline: &Pipeline,
    content: &Content,
    targets: &[Target],
    actuals: &[u64],
) -> Vec<Settled> {
    let calls = calls(content, targets, actuals);
    let deadline = pipeline.deadline_of(None);
    let sent = calls.iter().map(|call| pipeline.settle(call.call.clone(), deadline));
    let mut settled: Vec<Settled> = vec![Ok(Settlement::Nothing); targets.len()];
    for (call, results) in calls.iter().zip(join_all(sent).await) {
        for (checks, result) in call.checks.iter().zip(results) {
            checks.iter().for_each(|&check| settled[check] = result.clone());
        }
    }
    settled
}

fn calls(content: &Content, targets: &[Target], actuals: &[u64]) -> Vec<HoldCall> {
    let hold =
        NewHold { id: content.id.text(), ttl_us: content.ttl_ms * 1_000, is_refunded: content.is_refunded };
    let mut calls: Vec<HoldCall> = Vec::new();
    let held = content.items.iter().zip(targets).zip(actuals).enumerate();
    for (index, ((item, target), &actual)) in held.filter(|(_, ((item, _), _))| item.units > 0) {
        let hold = if item.charge.is_apart() { hold_of_item(&hold, index) } else { hold.clone() };
        // The fallback decided, so Redis holds the units only if its reply was lost.
        let actual = if item.is_unheld() { 0 } else { actual.min(MAX_DEBT) };
        // Unheld items can be of different slots, if each was alone in shadow mode.
        let is_same =
            |call: &&mut HoldCall| call.call.hold.id == hold.id && call.call.hash_tag() == target.hash_tag;
        match calls.iter_mut().find(is_same) {
            Some(call) => call.add(index, target, item.units, actual),
            None => {
                let items = vec![SettleItem { target: target.clone(), units: item.units, actual }];
                calls.push(HoldCall { call: SettleCall { hold, items }, checks: vec![vec![index]] });
            }
        }
    }
    calls
}

impl HoldCall {
    /// Adds a check. Checks of one key are one hold of the sum of their units.
    fn add(&mut self, index: usize, target: &Target, units: u64, actual: u64) {
        match self.call.items.iter().position(|item| item.target == *target) {
            Some(at) => {
                let item = &mut self.call.items[at];
                item.units = item.units.saturating_add(units);
                item.actual = item.actual.saturating_add(actual).min(MAX_DEBT);
                self.checks[at].push(index);
            }
            None => {
                self.call.items.push(SettleItem { target: target.clone(), units, actual });
                self.checks.push(vec![index]);
            }
        }
    }
}

/// Settles the checks that were admitted while Redis was unavailable: as the charges that this process remembers,
/// or by a signed token alone if another process admitted them.
async fn settle_unheld(
    pipeline: &Pipeline,
    content: &Content,
    targets: &[Target],
    actuals: &[u64],
    settled: &mut [Settled],
) {
    if content.issuer == Some(pipeline.unheld.issuer) {
        let removed = pipeline.unheld.remove(content.id.0);
        // Settled before, or its ttl has passed.
        let unheld = content.items.iter().zip(settled.iter_mut()).filter(|(item, _)| item.is_unheld());
        unheld.for_each(|(_, settled)| *settled = Ok(Settlement::Nothing));
        let Some(mut removed) = removed else { return };
        let settles = removed.charges.iter().map(|UnheldCharge { index, request, decision, stamp }| {
            pipeline.settle_charge(request, decision, stamp.as_ref(), actuals[*index])
        });
        let results = join_all(settles).await;
        for (charge, result) in removed.charges.iter().zip(results) {
            settled[charge.index] = result.map(|()| Settlement::Settled);
        }
        // A refund without a reply may have been made. A second one would return units of others.
        let is_failed = |error: &Error| error.is_unavailable() && !error.is_unanswered();
        removed.charges.retain(|UnheldCharge { index, .. }| settled[*index].as_ref().is_err_and(is_failed));
        if !removed.charges.is_empty() {
            pipeline.unheld.restore(content.id.0, removed);
        }
        return;
    }
    // Without a secret, any client can make a token that claims such a charge.
    let is_trusted = !pipeline.secrets.is_empty();
    for (index, item) in content.items.iter().enumerate().filter(|(_, item)| item.is_unheld()) {
        if !is_trusted {
            settled[index] = Ok(Settlement::Nothing);
            continue;
        }
        let charged = if item.charge.is_local() { item.units } else { 0 };
        let units = actuals[index].saturating_sub(charged);
        let (key, deadline) = (item.key.as_bytes(), pipeline.deadline_of(None));
        let written = match units {
            0 => Ok(()),
            _ => pipeline.charge_used_units(&targets[index], key, units, deadline).await,
        };
        settled[index] = written.map(|()| Settlement::Settled);
    }
}

fn target(pipeline: &Pipeline, item: &TokenItem) -> Result<Target, Error> {
    let info = pipeline.gate_info(&item.gate, item.quota)?;
    Ok(Target::of_encoded(&Arc::new(info), &item.key, item.hash_tag))
}
