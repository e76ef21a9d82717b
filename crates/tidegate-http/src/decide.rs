//! Decides a request: chooses the path, makes the checks and determines whether the request is admitted.

use http::request::Parts;
use smallvec::smallvec;
use tidegate::AllDecision;

use super::admission::Admission;
use super::check_group::CheckGroup;
use super::request_checks::RequestChecks;
#[cfg(feature = "rules")]
use super::rules;
use super::settings::LayerSettings;
use super::straight::{self, Decided};

/// Checks the gates of a request and determines whether it is admitted.
pub(super) async fn decide(settings: &LayerSettings, parts: &Parts) -> Admission {
    if settings.skip.as_ref().is_some_and(|skip| skip(parts)) {
        return Admission::Undecided;
    }
    #[cfg(feature = "rules")]
    if let Some(file_rules) = &settings.file_rules {
        return rules::decide(file_rules, settings, parts).await;
    }
    match straight::rule(settings) {
        Some(rule) => match straight::decide(settings, rule, parts).await {
            Decided::Undecided => Admission::Undecided,
            Decided::Admitted(admitted) => Admission::Straight(admitted),
            Decided::Rejected(rejection) => Admission::Rejected(rejection),
            Decided::Left(left) => {
                let (check, policy, result) = *left;
                let charge = rule.charge.as_ref().unwrap_or(&settings.charge).clone();
                let checks = RequestChecks::of_decided(policy, charge);
                let group = Some(CheckGroup::all(smallvec![check]));
                let result = result.map(|decision| (Some(AllDecision::of_each([decision])), None));
                Admission::new(settings, checks, group, result, &[], Vec::new())
            }
        },
        // Boxed, so that the future of a common request is small.
        None => Box::pin(decide_rules(settings, parts)).await,
    }
}

/// Decides a request by the layer's own rules, whatever they are.
async fn decide_rules(settings: &LayerSettings, parts: &Parts) -> Admission {
    let mut checks = RequestChecks::default();
    match checks.add_rules(settings, parts).await {
        Err(rejection) => Admission::rejected(*rejection),
        Ok(()) if checks.checks.is_empty() => Admission::Undecided,
        Ok(()) => {
            let mut group = checks.group().await;
            let result = match (&mut group, &settings.wait_queue) {
                (None, _) => Ok((None, None)),
                (Some(group), Some(wait_queue)) => Box::pin(wait_queue.decide(group)).await,
                (Some(group), None) => group.decide().await.map(|decision| (Some(decision), None)),
            };
            Admission::new(settings, checks, group, result, &[], Vec::new())
        }
    }
}
