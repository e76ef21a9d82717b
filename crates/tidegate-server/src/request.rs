//! Reads a request of the protocol as descriptors of rules.

use tidegate_rules::Descriptor;

use crate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use crate::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use crate::service_error::ServiceError;
use crate::unit;

/// The maximum number of descriptors of a request. All their checks are one atomic step in Redis, which serves no
/// other client meanwhile.
const MAX_DESCRIPTORS: usize = 100;

/// The descriptors of a valid request, in order.
pub(crate) struct RequestDescriptors<'r> {
    /// Those that charge units or, with 0 hits, peek.
    pub(crate) charged: Vec<Descriptor<'r>>,
    /// Those that give units back.
    pub(crate) returned: Vec<Descriptor<'r>>,
}

impl<'r> RequestDescriptors<'r> {
    pub(crate) fn new(request: &'r RateLimitRequest) -> Result<Self, ServiceError> {
        let invalid = |text: String| Err(ServiceError::Invalid(text));
        if request.domain.is_empty() {
            return invalid("the request has no `domain`: set the domain of the rules".to_owned());
        }
        match request.descriptors.len() {
            0 => return invalid("the request has no `descriptors`: send at least one".to_owned()),
            1..=MAX_DESCRIPTORS => {}
            count => {
                let text = format!(
                    "the request has {count} `descriptors`: send at most {MAX_DESCRIPTORS}, in several requests"
                );
                return invalid(text);
            }
        }
        // 0 is also the value of a request that does not set it.
        let hits = u64::from(request.hits_addend.max(1));
        let mut charged = Vec::with_capacity(request.descriptors.len());
        let mut returned = Vec::new();
        for descriptor in &request.descriptors {
            let hits = descriptor.hits_addend.unwrap_or(hits);
            let read = read(descriptor)?.hits(hits);
            match descriptor.is_negative_hits {
                true => returned.push(read),
                false => charged.push(read),
            }
        }
        Ok(Self { charged, returned })
    }
}

fn read(descriptor: &RateLimitDescriptor) -> Result<Descriptor<'_>, ServiceError> {
    let entries = descriptor.entries.iter();
    let read = entries.fold(Descriptor::new(), |read, entry| read.entry(&entry.key, &entry.value));
    match &descriptor.limit {
        None => Ok(read),
        Some(RateLimitOverride { requests_per_unit, unit }) => {
            let Some(window) = unit::window(*unit) else {
                let text =
                    format!("a descriptor's `limit` has no known `unit` ({unit}): send SECOND to YEAR");
                return Err(ServiceError::Invalid(text));
            };
            Ok(read.limit((*requests_per_unit).into(), window)?)
        }
    }
}
