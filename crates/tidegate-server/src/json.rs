//! The messages in the JSON of Protocol Buffers, by their descriptors.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, Kind, MessageDescriptor};

use crate::proto;
use crate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::similar_name::closest;

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

/// The beginning and the end of the name in an error about a field that the message does not have.
const UNKNOWN_FIELD: (&str, &str) = ("unrecognized field name '", "'");

/// The names of the fields of a request and of the messages in it.
static FIELDS: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
    let mut names = BTreeSet::new();
    add_fields(&DESCRIPTORS.request, &mut names);
    names
});

fn add_fields(message: &MessageDescriptor, names: &mut BTreeSet<String>) {
    for field in message.fields() {
        // A message in itself would add no further names.
        if let (true, Kind::Message(inner)) = (names.insert(field.name().to_owned()), field.kind()) {
            add_fields(&inner, names);
        }
    }
}

/// Adds the name that is probably meant to an error about an unknown field.
fn with_hint(error: String) -> String {
    let (start, end) = UNKNOWN_FIELD;
    // The name can contain any text.
    let name = error.strip_prefix(start).and_then(|rest| Some(rest.rsplit_once(end)?.0));
    match name.and_then(|name| closest(name, FIELDS.iter().map(String::as_str))) {
        Some(near) => format!("{error}; did you mean `{near}`?"),
        None => error,
    }
}

/// Parses a request. Names are accepted in both spellings, `hitsAddend` and `hits_addend`.
///
/// # Errors
///
/// The position and the cause, also for a field that the message does not have.
pub(crate) fn parse(text: &[u8]) -> Result<RateLimitRequest, String> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let message = DynamicMessage::deserialize(DESCRIPTORS.request.clone(), &mut json);
    let message = message
        .and_then(|message| json.end().map(|()| message))
        .map_err(|error| with_hint(error.to_string()))?;
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
