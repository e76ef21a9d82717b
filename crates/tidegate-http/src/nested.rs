//! Nested layers: detects a gate that two layers charge for one request.

use http::Extensions;
use tidegate::Check;

use super::warnings::LayerWarnings;

/// A response extension with the checks that inner layers have charged. Only a layer inside another one
/// inserts it, so a single layer pays nothing.
#[derive(Clone)]
struct Charged(Vec<Check>);

/// Reports checks that an inner layer has charged too. If this layer `is_nested` in another one, tells the outer
/// layer which checks were charged.
pub(super) fn compare_charges<'a>(
    warnings: &LayerWarnings,
    response: &mut Extensions,
    is_nested: bool,
    charged: impl Iterator<Item = &'a Check> + Clone,
) {
    if let Some(Charged(inner)) = response.get::<Charged>() {
        let is_same = |one: &Check, other: &Check| {
            one.gate() == other.gate() && one.key() == other.key() && one.limiter().is_same(&other.limiter())
        };
        for check in charged.clone().filter(|check| inner.iter().any(|inner| is_same(inner, check))) {
            warnings.charged_twice(check);
        }
    }
    if is_nested {
        let inner = response.remove::<Charged>().map_or(Vec::new(), |Charged(checks)| checks);
        response.insert(Charged(inner.into_iter().chain(charged.cloned()).collect()));
    }
}
