//! What becomes of a request: asked, and answered.

use std::sync::Arc;

use http::request::Parts;

use super::asking::{Asking, Question};
use super::charge::Held;
use super::policy::Policy;
use super::refusal::Refusal;
use super::settings::{OnError, Settings};
use super::waiting::Place;
use crate::decision::{AllDecision, Decision};
use crate::error::Error;
use crate::limiter::Core;
#[cfg(feature = "rules")]
use crate::rules::Ruling;

/// What became of the question.
pub(super) enum Passage {
    Free,
    Admitted(Admitted),
    Refused(Refusal),
}

pub(super) struct Admitted {
    /// `None` where nobody was asked who can deny.
    pub(super) decision: Option<AllDecision>,
    pub(super) policies: Vec<Policy>,
    pub(super) held: Held,
    /// In the waiting room, until the decision's delay is over.
    pub(super) place: Option<Place>,
    pub(super) core: Option<Arc<Core>>,
    #[cfg(feature = "rules")]
    pub(super) ruling: Option<Ruling>,
}

impl Settings {
    pub(super) async fn decide(&self, parts: &Parts) -> Passage {
        if self.skip.as_ref().is_some_and(|skip| skip(parts)) {
            return Passage::Free;
        }
        #[cfg(feature = "rules")]
        if let Some(ruled) = &self.ruled {
            return ruled.decide(self, parts).await;
        }
        let mut asking = Asking::default();
        match asking.add_rules(self, parts).await {
            None => Passage::Refused(Refusal::missing_key()),
            Some(()) if asking.asks.is_empty() => Passage::Free,
            Some(()) => {
                let mut question = asking.question();
                let answered = match (&mut question, &self.room) {
                    (None, _) => Ok((None, None)),
                    (Some(question), Some(room)) => room.decide(question).await,
                    (Some(question), None) => question.decide().await.map(|decision| (Some(decision), None)),
                };
                self.conclude(asking, question, answered, &[])
            }
        }
    }

    /// With what was said to those who only watch.
    pub(super) fn conclude(
        &self,
        asking: Asking,
        question: Option<Question>,
        answered: Answered,
        seen: &[Result<Decision, Error>],
    ) -> Passage {
        let Asking { mut policies, charges, refused, watched, .. } = asking;
        policies.extend(refused.into_iter().map(|(_, policy)| policy));
        let (decision, place) = match answered {
            Ok((Some(decision), _)) if !decision.is_allowed() => {
                return Passage::Refused(Refusal::denied(decision, policies, &self.headers));
            }
            Ok(answered) => answered,
            // No other error: whoever asked for more than there ever is would not be limited, nor anybody at a gate
            // that is set up wrongly.
            Err(error) if self.on_error == OnError::Pass && error.is_unavailable() => return Passage::Free,
            Err(error) => return Passage::Refused(Refusal::error(error, &self.headers)),
        };
        let asks = question.map_or(Vec::new(), |question| question.asks);
        let core = asks.first().map(|ask| ask.gate.core.clone());
        let decisions = decision.iter().flat_map(AllDecision::decisions).cloned();
        let taken = asks.into_iter().zip(decisions).zip(charges);
        let watched = watched.into_iter().zip(seen).filter_map(|(ask, seen)| Some((ask, seen.clone().ok()?)));
        let held = Held::new(taken.chain(watched.map(|it| (it, self.charge.clone()))));
        Passage::Admitted(Admitted {
            decision,
            policies,
            held,
            place,
            core,
            #[cfg(feature = "rules")]
            ruling: None,
        })
    }
}

/// `None` where nobody was asked who can deny.
pub(super) type Answered = Result<(Option<AllDecision>, Option<Place>), Error>;
