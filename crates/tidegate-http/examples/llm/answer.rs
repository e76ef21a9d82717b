//! The answer of the upstream on its way to the client.

use axum::body::Bytes;
use futures_util::{Stream, stream};

use super::limits::{Charge, Units};
use super::usage::Usage;

/// Forwards the upstream's events unchanged, and reads their usage. Dropped with the response body, also if the client
/// left, it ends the upstream's request and settles.
pub(super) struct Answer {
    upstream: reqwest::Response,
    usage: Usage,
    charge: Charge,
}

impl Answer {
    pub(super) fn new(upstream: reqwest::Response, mut charge: Charge) -> Self {
        let input = charge.estimate().input();
        // The upstream has read the input, even if its answer is lost.
        charge.set_used(Units::used(input, 0));
        Self { upstream, usage: Usage::new(input), charge }
    }

    pub(super) fn into_stream(self) -> impl Stream<Item = reqwest::Result<Bytes>> {
        stream::try_unfold(self, async |mut answer| {
            let Some(chunk) = answer.upstream.chunk().await? else {
                // Before the body ends, so that the client's next request finds the units returned.
                answer.charge.settle().await;
                return Ok(None);
            };
            answer.usage.read(&chunk);
            let (input, output) = answer.usage.tokens();
            answer.charge.set_used(Units::used(input, output));
            Ok::<_, reqwest::Error>(Some((chunk, answer)))
        })
    }
}
