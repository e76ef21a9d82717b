//! Streams the words of an answer as server-sent events. Each tenant may receive 30 words a minute. The number of
//! words is known only at the end of an answer, so 10 are taken in advance and settled then.
//!
//! ```console
//! $ TIDEGATE_REDIS_URL=redis://127.0.0.1:6379 LISTEN=127.0.0.1:3000 cargo run -p tidegate-http --features axum --example streaming
//! ```
//!
//! Its responses. The first answer used 4 words instead of 10:
//!
//! ```console
//! $ curl -s -H 'x-tenant: acme' -d 'I repeat your words' -w 'remaining: %header{x-ratelimit-remaining}\n' http://127.0.0.1:3000/
//! data: I
//!
//! data: repeat
//!
//! data: your
//!
//! data: words
//!
//! remaining: 20
//! $ curl -s -H 'x-tenant: acme' -d 'Again' -w 'remaining: %header{x-ratelimit-remaining}\n' http://127.0.0.1:3000/
//! data: Again
//!
//! remaining: 16
//! ```
//!
//! `--bench STREAMS ROUNDS` measures it with that many concurrent streams, of which some clients leave. It fails
//! unless exactly the words that were sent are charged.
#![allow(clippy::print_stdout, reason = "a program for the command line")]

#[path = "streaming/bench.rs"]
mod bench;

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::response::Sse;
use axum::response::sse::Event;
use axum::routing::post;
use futures_util::{Stream, stream};
use tidegate::{Limiter, Quota};
use tidegate_http::{Abandoned, Charge, Key, RateLimitLayer, Usage};
use tokio::net::TcpListener;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, streams, rounds] = &*arguments
        && flag == "--bench"
    {
        return bench::run(streams.parse()?, rounds.parse()?).await;
    }
    let limiter = Limiter::builder()
        .url(&std::env::var("TIDEGATE_REDIS_URL")?)
        .namespace("example-streaming")
        .deadline(Duration::from_secs(2))
        .build()?;
    let words = limiter.gate("words", Quota::fixed_window(30, Duration::from_secs(60)));
    let layer = RateLimitLayer::new(words, Key::header("x-tenant"))
        .cost(|_| 10)
        // A client that leaves pays for the words that were sent.
        .charge(Charge::usage().if_abandoned(Abandoned::Used));
    let app = Router::new().route("/", post(repeat)).layer(layer);
    let listener = TcpListener::bind(std::env::var("LISTEN")?).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

async fn repeat(usage: Usage, prompt: String) -> Sse<Answer<impl Stream<Item = String>>> {
    let words: Vec<String> = prompt.split_whitespace().map(str::to_owned).collect();
    Sse::new(Answer::new(Some(usage), stream::iter(words)))
}

/// Events with the words of an answer. Reports how many were sent.
struct Answer<S> {
    words: S,
    sent: u64,
    usage: Option<Usage>,
}

impl<S> Answer<S> {
    const fn new(usage: Option<Usage>, words: S) -> Self {
        Self { words, sent: 0, usage }
    }

    fn report(&self) {
        if let Some(usage) = &self.usage {
            usage.set(self.sent);
        }
    }
}

impl<S: Stream<Item = String> + Unpin> Stream for Answer<S> {
    type Item = Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let word = ready!(Pin::new(&mut self.words).poll_next(cx));
        if word.is_some() {
            self.sent += 1;
        } else {
            // Before the stream ends: then the charge is settled.
            self.report();
        }
        Poll::Ready(word.map(|word| Ok(Event::default().data(word))))
    }
}

impl<S> Drop for Answer<S> {
    /// Reports the words of an answer whose client left.
    fn drop(&mut self) {
        self.report();
    }
}
