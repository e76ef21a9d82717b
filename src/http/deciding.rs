//! What becomes of a request: asked, and answered.

use std::pin::Pin;
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
                let answered = self.answer(question.as_mut(), &[]).await;
                self.conclude(asking, question, answered, &[])
            }
        }
    }

    /// What is answered to those who can deny, and with it what is refused without being asked.
    pub(super) async fn answer(
        &self,
        question: Option<&mut Question>,
        refused: &[(Decision, Policy)],
    ) -> Answered {
        let (decision, place) = match (question, &self.room) {
            (None, _) if refused.is_empty() => return Ok((None, None)),
            (None, _) => (None, None),
            (Some(question), Some(room)) if refused.is_empty() => {
                // Boxed, so that the types of services around this do not grow by it.
                let waiting: Pin<Box<dyn Future<Output = _> + Send + '_>> = Box::pin(room.decide(question));
                let (decision, place) = waiting.await?;
                (Some(decision), place)
            }
            // Nobody waits for what is refused in any case.
            (Some(question), _) => (Some(question.decide().await?), None),
        };
        match (decision, refused) {
            (Some(decision), []) => Ok((Some(decision), place)),
            (decision, _) => {
                let asked = decision.map_or(Vec::new(), |decision| decision.decisions);
                let refused = refused.iter().map(|(decision, _)| decision.clone());
                Ok((Some(AllDecision::of_each(asked.into_iter().chain(refused).collect())), None))
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
type Answered = Result<(Option<AllDecision>, Option<Place>), Error>;
