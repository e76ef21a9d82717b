//! The messages in the JSON of Protocol Buffers, by their descriptors.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::LazyLock;

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, Kind, MessageDescriptor};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use tidegate_rules::similar_name;

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

/// The beginnings of errors about a number, which do not say which numbers are valid.
const NOT_A_NUMBER: [&str; 5] = [
    "number too large to fit in target type",
    "out of range integral type conversion attempted",
    "float value out of range",
    "expected integer value",
    "invalid digit found in string",
];

/// Adds to an error about an unknown field the name that is probably meant, and to one about a number its range.
fn with_hint(error: String) -> String {
    if let Some(place) = NOT_A_NUMBER.iter().find_map(|start| error.strip_prefix(start)) {
        let (of_request, of_descriptor) = (u32::MAX, u64::MAX);
        return format!(
            "a number is not valid{place}: write whole numbers, `hits_addend` of a descriptor from 0 to {of_descriptor}, \
             all others from 0 to {of_request}"
        );
    }
    let (start, end) = UNKNOWN_FIELD;
    // The name can contain any text.
    let name = error.strip_prefix(start).and_then(|rest| Some(rest.rsplit_once(end)?.0));
    match name.and_then(|name| similar_name(name, FIELDS.iter().map(String::as_str))) {
        Some(near) => format!("{error}; did you mean `{near}`?"),
        None => error,
    }
}

/// A JSON value in which no object has a field twice. Of several, the message would keep the last one, and a proxy before
/// this service the first one. Both spellings of a name are one field.
struct UniqueFields;

impl<'de> Deserialize<'de> for UniqueFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for UniqueFields {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self, A::Error> {
        while items.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self, A::Error> {
        let mut names = BTreeSet::new();
        while let Some((name, Self)) = fields.next_entry::<String, Self>()? {
            if !names.insert(name.replace('_', "").to_ascii_lowercase()) {
                return Err(A::Error::custom(format_args!("duplicate field `{name}`")));
            }
        }
        Ok(self)
    }
}

/// Parses a request. Names are accepted in both spellings, `hitsAddend` and `hits_addend`.
///
/// # Errors
///
/// The position and the cause, also for a field that the message does not have, and for one that is there twice.
pub(crate) fn parse(text: &[u8]) -> Result<RateLimitRequest, String> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let message = DynamicMessage::deserialize(DESCRIPTORS.request.clone(), &mut json);
    let message = message
        .and_then(|message| json.end().map(|()| message))
        .map_err(|error| with_hint(error.to_string()))?;
    let UniqueFields = serde_json::from_slice(text).map_err(|error| error.to_string())?;
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
