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

/// The descriptors of a valid request.
pub(crate) struct RequestDescriptors<'r>(Vec<RequestDescriptor<'r>>);

struct RequestDescriptor<'r> {
    descriptor: Descriptor<'r>,
    hits: u64,
    is_returned: bool,
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
        let read = |from: &'r RateLimitDescriptor| {
            let hits = from.hits_addend.unwrap_or(hits);
            Ok(RequestDescriptor { descriptor: read(from)?, hits, is_returned: from.is_negative_hits })
        };
        request.descriptors.iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// Returns the descriptors that charge units or, with 0 hits, peek.
    pub(crate) fn charged(&self) -> Vec<Descriptor<'r>> {
        self.of_kind(false).map(|of| of.descriptor.clone().hits(of.hits)).collect()
    }

    /// Returns the same descriptors, all without units.
    pub(crate) fn charged_as_peeks(&self) -> Vec<Descriptor<'r>> {
        self.of_kind(false).map(|of| of.descriptor.clone().hits(0)).collect()
    }

    /// Returns whether some of them charge units and others only peek.
    pub(crate) fn has_peeks_beside_charges(&self) -> bool {
        let has = |is_peek: bool| self.of_kind(false).any(|of| (of.hits == 0) == is_peek);
        has(true) && has(false)
    }

    /// Returns the descriptors that give units back.
    pub(crate) fn returned(&self) -> Vec<Descriptor<'r>> {
        self.of_kind(true).map(|of| of.descriptor.clone().hits(of.hits)).collect()
    }

    fn of_kind(&self, is_returned: bool) -> impl Iterator<Item = &RequestDescriptor<'r>> {
        self.0.iter().filter(move |of| of.is_returned == is_returned)
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
