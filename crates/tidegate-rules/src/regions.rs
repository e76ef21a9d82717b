//! Limits that several regions share: `regions: gossip`.

use tidegate::{Gate, Quota};

use crate::fields::REGIONS;
use crate::limit::Limit;
use crate::reader::{Fields, Reader};

/// Reads whether several regions share a limit and those of its tiers.
pub(super) fn read(
    reader: &mut Reader<'_>,
    rate_limit: &Fields<'_>,
    limits: impl IntoIterator<Item = Limit>,
) -> bool {
    let Some(node) = rate_limit.get("regions") else { return false };
    let is_known = reader.choice("regions", REGIONS, node).is_some();
    let quotas = limits.into_iter().filter_map(Limit::quota);
    if let Some(message) = quotas.filter_map(|quota| check(&quota)).next() {
        reader.error(node.span(), message);
    }
    is_known
}

/// Returns why a quota cannot be shared.
#[cfg(feature = "regions")]
fn check(quota: &Quota) -> Option<String> {
    tidegate::regions::Mode::gossip().check_quota(quota).err().map(|error| error.to_string())
}

#[cfg(not(feature = "regions"))]
fn check(_: &Quota) -> Option<String> {
    Some("`regions` needs the feature `regions` of the crate tidegate-rules: enable it".to_owned())
}

/// Returns the gate as one that all regions share.
pub(super) fn replicated(gate: Gate) -> Gate {
    #[cfg(feature = "regions")]
    let gate = gate.replicated(tidegate::regions::Mode::gossip());
    gate
}
