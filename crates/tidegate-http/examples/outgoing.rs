//! Two instances call another party's service, which admits 10 requests in any second and responds with 429
//! to more. Together the instances keep that limit. When the service sends Retry-After to one of them, both
//! wait.
//!
//! ```console
//! $ TIDEGATE_REDIS_URL=redis://127.0.0.1:6379 cargo run -p tidegate-http --features client --example outgoing
//! without the layer: 60 requests, 10 answered 200, 50 answered 429, in 0.0 s
//! with the layer: 60 requests, 60 answered 200, 0 answered 429, in 11.6 s
//! the first was rejected for 2 s; the second sent its next request after 2.0 s
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
use tidegate::{Limiter, Quota, Rate};
use tidegate_http::{Key, OutgoingLayer};
use tokio::net::TcpListener;
use tower::util::BoxCloneSyncService;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

/// Up to 2 at once and 5 more per second. This is well below the service's limit of 10, since requests take
/// different times to arrive.
const THEIRS: Quota = Quota::token_bucket(2, Rate::per_second(5));

type Failure = Box<dyn std::error::Error + Send + Sync>;

type Client = BoxCloneSyncService<Request<String>, Response<reqwest::Body>, Failure>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let redis = std::env::var("TIDEGATE_REDIS_URL")?;
    let url = start_remote_service().await?;

    let bare = [client(None)?, client(None)?];
    report("without the layer", check(&bare, &url).await?);
    // The limiter did not count these requests, so waits until the service has forgotten them.
    tokio::time::sleep(Duration::from_secs(1)).await;

    let limited = [client(Some(&redis))?, client(Some(&redis))?];
    report("with the layer", check(&limited, &url).await?);

    let [mut first, mut second] = limited;
    let closed = Request::get(format!("{url}closed")).body(String::new())?;
    let rejected = first.ready().await?.call(closed).await?;
    let (pause, start) = (rejected.headers()["retry-after"].to_str()?, Instant::now());
    second.ready().await?.call(Request::get(url).body(String::new())?).await?;
    let waited = start.elapsed().as_secs_f64();
    println!("the first was rejected for {pause} s; the second sent its next request after {waited:.1} s");
    Ok(())
}

/// Builds one instance's client: reqwest's, with the layer around it if there is a Redis. In a fleet, each
/// instance is a separate process, with the same namespace, gate and key.
fn client(redis: Option<&str>) -> Result<Client, Failure> {
    let client = ServiceBuilder::new()
        .map_response(Response::<reqwest::Body>::from)
        .map_request(|request: Request<String>| reqwest::Request::try_from(request).expect("an absolute URL"))
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

/// Sends 60 requests at the same time, half of them by each instance. Returns the time and the statuses.
async fn check(instances: &[Client; 2], url: &str) -> Result<(Duration, Vec<StatusCode>), Failure> {
    let start = Instant::now();
    let statuses = join_all((0..60).map(async |index: usize| {
        let request = Request::get(url).body(String::new())?;
        Ok::<_, Failure>(instances[index % 2].clone().oneshot(request).await?.status())
    }));
    let statuses = statuses.await.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok((start.elapsed(), statuses))
}

fn report(title: &str, (took, statuses): (Duration, Vec<StatusCode>)) {
    let count = |expected| statuses.iter().filter(|&&status| status == expected).count();
    println!(
        "{title}: {} requests, {} answered 200, {} answered 429, in {:.1} s",
        statuses.len(),
        count(StatusCode::OK),
        count(StatusCode::TOO_MANY_REQUESTS),
        took.as_secs_f64()
    );
}

/// Starts the other party's service. It responds with 429 to more than 10 requests in any second, and to
/// `/closed`.
async fn start_remote_service() -> Result<String, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    let recent = Arc::<Mutex<VecDeque<Instant>>>::default();
    let limited = async move || {
        let mut recent = recent.lock().expect("no holder panics");
        recent.retain(|admitted| admitted.elapsed() < Duration::from_secs(1));
        if recent.len() >= 10 {
            return rejection("1");
        }
        recent.push_back(Instant::now());
        (StatusCode::OK, HeaderMap::new())
    };
    let app = Router::new().route("/closed", get(async || rejection("2"))).fallback(limited);
    tokio::spawn(axum::serve(listener, app).into_future());
    Ok(url)
}

fn rejection(seconds: &'static str) -> (StatusCode, HeaderMap) {
    (StatusCode::TOO_MANY_REQUESTS, HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(seconds))]))
}
