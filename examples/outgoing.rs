//! Two instances ask somebody else's service, which admits 10 requests in any second and answers 429 to
//! more. Together they keep that limit; and when the service says to one to stay away, both do.
//!
//! ```console
//! $ TIDEGATE_REDIS_URL=redis://127.0.0.1:6379 cargo run --features client --example outgoing
//! by themselves: 60 requests, 10 answered 200, 50 answered 429, in 0.0 s
//! with the layer: 60 requests, 60 answered 200, 0 answered 429, in 11.6 s
//! the first was told to stay away for 2 s; the second asked again after 2.0 s
//! ```
#![allow(clippy::print_stdout, reason = "a program for the command line")]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use axum::routing::get;
use futures_util::future::join_all;
use tidegate::http::{Key, OutgoingLayer};
use tidegate::{Limiter, Quota, Rate};
use tokio::net::TcpListener;
use tower::util::BoxCloneSyncService;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

/// Up to 2 at once and 5 more in a second: well below the 10 of the service, since some are on their way
/// for longer than others.
const THEIRS: Quota = Quota::token_bucket(2, Rate::per_second(5));

type Failure = Box<dyn std::error::Error + Send + Sync>;

type Client = BoxCloneSyncService<Request<String>, Response<reqwest::Body>, Failure>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let redis = std::env::var("TIDEGATE_REDIS_URL")?;
    let url = start_their_service().await?;

    let bare = [client(None)?, client(None)?];
    report("by themselves", ask(&bare, &url).await?);
    // What they used up by themselves is not on anybody's account.
    tokio::time::sleep(Duration::from_secs(1)).await;

    let limited = [client(Some(&redis))?, client(Some(&redis))?];
    report("with the layer", ask(&limited, &url).await?);

    let [mut first, mut second] = limited;
    let told = first.ready().await?.call(Request::get(format!("{url}closed")).body(String::new())?).await?;
    let (pause, start) = (told.headers()["retry-after"].to_str()?, Instant::now());
    second.ready().await?.call(Request::get(url).body(String::new())?).await?;
    let waited = start.elapsed().as_secs_f64();
    println!("the first was told to stay away for {pause} s; the second asked again after {waited:.1} s");
    Ok(())
}

/// One instance's client: reqwest's, with the layer around it if there is a Redis. In a fleet each has a
/// process of its own, and the same namespace, gate and key.
fn client(redis: Option<&str>) -> Result<Client, Failure> {
    let client = ServiceBuilder::new()
        .map_response(Response::<reqwest::Body>::from)
        .map_request(|request: Request<String>| reqwest::Request::try_from(request).expect("a whole URL"))
        .service(reqwest::Client::builder().no_proxy().build()?);
    let Some(redis) = redis else { return Ok(BoxCloneSyncService::new(client.map_err(Failure::from))) };
    let limiter = Limiter::builder()
        .url(redis)
        .namespace("example-outgoing")
        .deadline(Duration::from_secs(2))
        .build()?;
    let layer = OutgoingLayer::new(limiter.gate("theirs", THEIRS))
        .key(Key::constant("our account"))
        .max_wait(Duration::from_secs(60));
    Ok(BoxCloneSyncService::new(layer.layer(client).map_err(Failure::from)))
}

/// 60 requests at once, half of them by each instance: how many were answered how.
async fn ask(instances: &[Client; 2], url: &str) -> Result<(Duration, Vec<StatusCode>), Failure> {
    let start = Instant::now();
    let answers = join_all((0..60).map(async |place: usize| {
        let request = Request::get(url).body(String::new())?;
        Ok::<_, Failure>(instances[place % 2].clone().oneshot(request).await?.status())
    }));
    let answers = answers.await.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok((start.elapsed(), answers))
}

fn report(who: &str, (took, answers): (Duration, Vec<StatusCode>)) {
    let count = |status| answers.iter().filter(|&&answer| answer == status).count();
    println!(
        "{who}: {} requests, {} answered 200, {} answered 429, in {:.1} s",
        answers.len(),
        count(StatusCode::OK),
        count(StatusCode::TOO_MANY_REQUESTS),
        took.as_secs_f64()
    );
}

/// Somebody else's service. Answers 429 to more than 10 requests in any second, and to `/closed`.
async fn start_their_service() -> Result<String, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    let recent = Arc::<Mutex<VecDeque<Instant>>>::default();
    let limited = async move || {
        let mut recent = recent.lock().expect("nobody panics");
        recent.retain(|admitted| admitted.elapsed() < Duration::from_secs(1));
        if recent.len() >= 10 {
            return refusal("1");
        }
        recent.push_back(Instant::now());
        (StatusCode::OK, HeaderMap::new())
    };
    let app = Router::new().route("/closed", get(async || refusal("2"))).fallback(limited);
    tokio::spawn(axum::serve(listener, app).into_future());
    Ok(url)
}

fn refusal(seconds: &'static str) -> (StatusCode, HeaderMap) {
    (StatusCode::TOO_MANY_REQUESTS, HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(seconds))]))
}
