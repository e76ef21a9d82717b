//! Decides a request: makes its checks and determines whether it is admitted.

use http::request::Parts;

use super::admission::Admission;
use super::request_checks::RequestChecks;
#[cfg(feature = "rules")]
use super::rules;
use super::settings::LayerSettings;

/// Checks the gates of a request and determines whether it is admitted.
pub(super) async fn decide(settings: &LayerSettings, parts: &Parts) -> Admission {
    if settings.skip.as_ref().is_some_and(|skip| skip(parts)) {
        return Admission::Undecided;
    }
    #[cfg(feature = "rules")]
    if let Some(file_rules) = &settings.file_rules {
        return rules::decide(file_rules, settings, parts).await;
    }
    let mut checks = RequestChecks::default();
    match checks.add_rules(settings, parts).await {
        Err(rejection) => Admission::rejected(*rejection),
        Ok(()) if checks.checks.is_empty() => Admission::Undecided,
        Ok(()) => {
            let mut group = checks.group().await;
            let result = match (&mut group, &settings.wait_queue) {
                (None, _) => Ok((None, None)),
                (Some(group), Some(wait_queue)) => wait_queue.decide(group).await,
                (Some(group), None) => group.decide().await.map(|decision| (Some(decision), None)),
            };
            Admission::new(settings, checks, group, result, &[], Vec::new())
        }
    }
}
