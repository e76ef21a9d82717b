//! The messages in the JSON of Protocol Buffers, by their descriptors.

use std::sync::LazyLock;

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};

use crate::proto;
use crate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

struct Descriptors {
    request: MessageDescriptor,
    response: MessageDescriptor,
}

static DESCRIPTORS: LazyLock<Descriptors> = LazyLock::new(|| {
    let pool = DescriptorPool::decode(proto::DESCRIPTORS).expect("the build encoded the descriptors");
    let message = |name: &str| {
        let name = format!("envoy.service.ratelimit.v3.{name}");
        pool.get_message_by_name(&name).expect("the descriptors contain the service's messages")
    };
    Descriptors { request: message("RateLimitRequest"), response: message("RateLimitResponse") }
});

/// Parses a request. Names are accepted in both spellings, `hitsAddend` and `hits_addend`.
///
/// # Errors
///
/// The position and the cause, also for a field that the message does not have.
pub(crate) fn parse(text: &[u8]) -> Result<RateLimitRequest, String> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let message = DynamicMessage::deserialize(DESCRIPTORS.request.clone(), &mut json);
    let message =
        message.and_then(|message| json.end().map(|()| message)).map_err(|error| error.to_string())?;
    message.transcode_to().map_err(|error| error.to_string())
}

/// Writes a response. Fields with their default value are left out.
///
/// # Errors
///
/// The cause. No response that the service makes causes one.
pub(crate) fn write(response: &RateLimitResponse) -> Result<Vec<u8>, String> {
    let bytes = response.encode_to_vec();
    let message = DynamicMessage::decode(DESCRIPTORS.response.clone(), &*bytes);
    let message = message.map_err(|error| error.to_string())?;
    serde_json::to_vec(&message).map_err(|error| error.to_string())
}
