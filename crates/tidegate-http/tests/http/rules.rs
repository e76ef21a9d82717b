//! Layers whose gates come from rules files.

mod actions;
mod reloading;
mod requests;
mod waiting;

use http::Request;
use tidegate::Limiter;
use tidegate_http::{Headers, RateLimitLayer};
use tidegate_rules::Rules;

/// Builds a descriptor `api_key` from `x-api-key`, and a descriptor `user` from `x-user`.
const BY_HEADERS: &str = "
domain: api
rate_limits:
  - actions: [{ request_headers: { header_name: x-api-key, descriptor_key: api_key } }]
  - actions: [{ request_headers: { header_name: x-user, descriptor_key: user } }]
";

pub(super) fn rules(descriptors: &str) -> Rules {
    Rules::parse("api.yaml", &format!("{BY_HEADERS}{descriptors}")).unwrap()
}

/// Returns a layer with limits for the descriptors that [`BY_HEADERS`] builds from a request. Its responses name rules by
/// their paths.
fn layer(limiter: &Limiter, descriptors: &str) -> RateLimitLayer {
    layer_of(&rules(descriptors), limiter)
}

fn layer_of(rules: &Rules, limiter: &Limiter) -> RateLimitLayer {
    let layer = RateLimitLayer::with_rules(rules.bind(limiter), "api").unwrap();
    layer.headers(Headers::new().rule_paths(true))
}

pub(super) fn request(headers: &[(&str, &str)]) -> Request<String> {
    let request =
        headers.iter().fold(Request::builder(), |request, (name, value)| request.header(*name, *value));
    request.body(String::new()).unwrap()
}
