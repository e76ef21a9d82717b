//! A layer that takes its gates from rules.

use std::sync::Arc;

use futures_util::future::join;
use http::request::Parts;

use super::asking::{Asking, Question};
use super::deciding::{Answered, Passage};
use super::descriptors::Descriptors;
use super::policy::Policy;
use super::refusal::{Reason, Refusal};
use super::settings::{BoxFuture, Settings};
use crate::ask::Ask;
use crate::decision::{AllDecision, Decision};
use crate::error::Error;
use crate::limiter::Core;
use crate::rules::{Need, Plan, Watched};

/// Rules, and how a request becomes what they are asked for.
#[derive(Clone)]
pub(super) struct Ruled {
    rules: Watched,
    descriptors: Arc<Descriptors>,
    /// Kept so that rules that lack what is needed here are not taken.
    _need: Arc<Need>,
    /// That of the gates of all versions.
    pub(super) core: Arc<Core>,
}

impl Ruled {
    pub(super) fn new(rules: Watched, descriptors: Descriptors) -> Result<Self, Error> {
        let descriptors = Arc::new(descriptors);
        let needed = descriptors.clone();
        let need: Arc<Need> = Arc::new(move |rules| needed.check(rules));
        rules.require(&need)?;
        let core = rules.limits().core().clone();
        Ok(Self { rules, descriptors, _need: need, core })
    }

    /// Boxed, so that the types of services around this do not grow by it.
    pub(super) fn decide<'a>(&'a self, settings: &'a Settings, parts: &'a Parts) -> BoxFuture<'a, Passage> {
        Box::pin(self.decide_now(settings, parts))
    }

    async fn decide_now(&self, settings: &Settings, parts: &Parts) -> Passage {
        // Those of this moment, to the end.
        let limits = self.rules.limits();
        let hits = settings.cost.as_ref().map_or(1, |cost| cost(parts));
        let descriptors = match hits {
            0 => Some(Vec::new()),
            _ => self.descriptors.of_request(limits.rules(), parts, settings.missing_key),
        };
        let Some(descriptors) = descriptors else {
            return Passage::Refused(Refusal::missing_key());
        };
        let descriptors: Vec<_> = match settings.cost {
            Some(_) => descriptors.into_iter().map(|descriptor| descriptor.hits(hits)).collect(),
            None => descriptors,
        };
        let plan = limits.plan(self.descriptors.domain(), &descriptors);
        let mut asking = Asking::default();
        asking.add_plan(&plan, settings);
        if asking.add_rules(settings, parts).await.is_none() {
            return Passage::Refused(Refusal::missing_key());
        }
        let mut question = asking.question();
        let answered = answer(settings, question.as_mut(), &asking.refused);
        let (answered, seen) = join(answered, watch(&asking.watched)).await;
        let mut passage = settings.conclude(asking, question, answered, &seen);
        match &mut passage {
            Passage::Admitted(admitted) => {
                let decisions = admitted.decision.iter().flat_map(AllDecision::decisions).cloned();
                admitted.ruling = Some(plan.ruling(true, decisions, seen));
            }
            Passage::Refused(refusal) => {
                if let Reason::Denied(decision) = refusal.reason() {
                    let decisions = decision.decisions().to_vec();
                    refusal.ruling = Some(Box::new(plan.ruling(false, decisions, seen)));
                }
            }
            Passage::Free => {}
        }
        passage
    }
}

impl Asking {
    fn add_plan(&mut self, plan: &Plan<'_>, settings: &Settings) {
        self.charges_each = plan.charges_each;
        for wanted in &plan.wanted {
            let name = plan.rule(wanted).map(|rule| rule.shown().clone());
            self.asks.push(wanted.gate.ask(&wanted.key).cost(wanted.cost));
            self.policies.push(Policy::new(wanted.gate, name));
            self.charges.push(settings.charge.clone());
        }
        let watched = plan.watched.iter().map(|it| it.gate.ask(&it.key).cost(it.cost));
        self.watched.extend(watched);
        self.refused.extend(plan.refused().map(|(rule, decision)| {
            let policy = Policy::of_nothing(rule.shown().clone(), decision.retry_after());
            (decision.clone(), policy)
        }));
    }
}

/// With what is refused without being asked.
async fn answer(
    settings: &Settings,
    question: Option<&mut Question>,
    refused: &[(Decision, Policy)],
) -> Answered {
    let decided = match (question, &settings.room) {
        (None, _) => None,
        (Some(question), Some(room)) if refused.is_empty() => return room.decide(question).await,
        // Nobody waits for what is refused in any case.
        (Some(question), _) => Some(question.decide().await?),
    };
    if refused.is_empty() {
        return Ok((decided, None));
    }
    let asked = decided.map_or(Vec::new(), |decision| decision.decisions);
    let refused = refused.iter().map(|(decision, _)| decision.clone());
    Ok((Some(AllDecision::of_each(asked.into_iter().chain(refused).collect())), None))
}

/// What does not matter to whether a request passes.
async fn watch(asks: &[Ask]) -> Vec<Result<Decision, Error>> {
    let Some(first) = asks.first() else { return Vec::new() };
    let refs: Vec<_> = asks.iter().map(Ask::as_ref).collect();
    first.gate.core.check_each(&refs).await
}
