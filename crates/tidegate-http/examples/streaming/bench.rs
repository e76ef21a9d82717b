//! Measures streams with and without a charge at their end, and verifies the charge.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::response::Sse;
use axum::routing::post;
use axum::{Router, body::Body};
use futures_util::{Stream, StreamExt, stream};
use http::Request;
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tidegate::{Gate, Limiter, Quota};
use tidegate_http::{Abandoned, Charge, Key, RateLimitLayer, Usage};
use tokio::sync::{Barrier, watch};
use tokio::task::JoinSet;

use super::{Answer, Failure};

const WORDS: usize = 500;
const TAKEN: u64 = 300;
const LIMIT: u64 = 1 << 40;
const TENANTS: usize = 100;
/// One in this many clients leaves in the middle of its answer.
const LEAVING: usize = 10;

/// A client that fails leaves the others waiting.
const PATIENCE: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Variant {
    NoLayer,
    /// The taken units stay charged.
    NoSettlement,
    Usage,
}

const VARIANTS: [(Variant, &str); 3] = [
    (Variant::NoLayer, "no layer"),
    (Variant::NoSettlement, "layer, no charge at the end"),
    (Variant::Usage, "layer, charge at the end"),
];

/// Streams words. The second half follows when `go` is set, so that all streams are open at once.
fn words(mut go: watch::Receiver<bool>, sent: Arc<AtomicU64>) -> impl Stream<Item = String> + Unpin {
    let half = |from: usize| stream::iter(from..from + WORDS / 2);
    let second = async move {
        let _ = go.wait_for(|go| *go).await;
        half(WORDS / 2)
    };
    half(0).chain(stream::once(Box::pin(second)).flatten()).map(move |at| {
        sent.fetch_add(1, Ordering::Relaxed);
        format!("word{at}")
    })
}

/// Runs the variants in turn. Uses the Redis at `TIDEGATE_REDIS_URL`, or memory if it is not set.
pub(super) async fn run(streams: usize, rounds: usize) -> Result<(), Failure> {
    let mut rates: [Vec<f64>; 3] = Default::default();
    let mut costs: [Vec<f64>; 3] = Default::default();
    for round in 0..rounds {
        for turn in 0..VARIANTS.len() {
            // Each variant comes first equally often.
            let at = (round + turn) % VARIANTS.len();
            let (elapsed, cpu_us) = tokio::time::timeout(PATIENCE, one(VARIANTS[at].0, streams)).await??;
            rates[at].push(streams as f64 / elapsed.as_secs_f64());
            costs[at].push(cpu_us);
        }
    }
    let (base_rate, base_cost) = (median(&mut rates[0]), median(&mut costs[0]));
    for (at, (_, name)) in VARIANTS.iter().enumerate() {
        let (rate, cost) = (median(&mut rates[at]), median(&mut costs[at]));
        println!(
            "{name}: {rate:.0} streams/s ({:.3}), {cost:.1} us of CPU per stream ({:.3})",
            rate / base_rate,
            cost / base_cost
        );
    }
    Ok(())
}

/// Runs all streams once. Returns the time, and the CPU time per stream in microseconds.
async fn one(variant: Variant, streams: usize) -> Result<(Duration, f64), Failure> {
    let limiter = match std::env::var("TIDEGATE_REDIS_URL") {
        Ok(url) => Limiter::builder().url(&url).deadline(Duration::from_secs(30)).build()?,
        Err(_) => Limiter::in_memory(),
    };
    let gate = limiter.gate("words", Quota::fixed_window(LIMIT, Duration::from_secs(3_600)));
    for tenant in 0..TENANTS {
        gate.reset(tenant.to_string()).await?;
    }
    let (go, gone) = watch::channel(false);
    let sent = Arc::new(AtomicU64::new(0));
    let counter = sent.clone();
    let handler = move |usage: Option<Usage>| {
        let words = words(gone.clone(), counter.clone());
        async move { Sse::new(Answer::new(usage, words)) }
    };
    let layer = RateLimitLayer::new(gate.clone(), Key::header("x-tenant")).cost(|_| TAKEN);
    let app = Router::new().route("/", post(handler));
    let app = match variant {
        Variant::NoLayer => app,
        Variant::NoSettlement => app.layer(layer),
        Variant::Usage => app.layer(layer.charge(Charge::usage().if_abandoned(Abandoned::Used))),
    };
    let (start, cpu_before) = (Instant::now(), cpu_us());
    let all_open = Arc::new(Barrier::new(streams + 1));
    let mut clients = JoinSet::new();
    for client in 0..streams {
        clients.spawn(stream_once(app.clone(), client, all_open.clone()));
    }
    all_open.wait().await;
    go.send_replace(true);
    while let Some(finished) = clients.join_next().await {
        finished??;
    }
    if variant == Variant::Usage {
        await_settlement(&gate, &sent).await?;
    }
    Ok((start.elapsed(), (cpu_us() - cpu_before) / streams as f64))
}

/// Waits until exactly the units that were sent are charged.
async fn await_settlement(gate: &Gate, sent: &AtomicU64) -> Result<(), Failure> {
    let start = Instant::now();
    loop {
        let mut charged = 0;
        for tenant in 0..TENANTS {
            charged += LIMIT - gate.peek(tenant.to_string()).await?.remaining();
        }
        let sent = sent.load(Ordering::Relaxed);
        if charged == sent {
            return Ok(());
        }
        if start.elapsed() > Duration::from_secs(60) {
            return Err(format!("{charged} units are charged, and {sent} were sent").into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Reads one answer over a connection of its own, or leaves in the middle of it.
async fn stream_once(app: Router, client: usize, all_open: Arc<Barrier>) -> Result<(), Failure> {
    let (here, there) = tokio::io::duplex(1 << 10);
    let service = TowerToHyperService::new(app);
    let server = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(there), service);
    let server = tokio::spawn(server);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(here)).await?;
    let connection = tokio::spawn(connection);
    let tenant = (client % TENANTS).to_string();
    let request = Request::post("/").header("host", "x").header("x-tenant", tenant).body(Body::empty())?;
    let mut body = sender.send_request(request).await?.into_body();
    let is_leaving = client.is_multiple_of(LEAVING);
    if is_leaving {
        body.frame().await.ok_or("the answer has a word")??;
        connection.abort();
        let _ = connection.await;
        // The server ends the connection with an error, and drops the response body.
        let _ = server.await?;
        all_open.wait().await;
        return Ok(());
    }
    all_open.wait().await;
    let answer = body.collect().await?.to_bytes();
    let events = answer.windows(6).filter(|window| window == b"data: ").count();
    if events != WORDS {
        return Err(format!("{events} of {WORDS} words").into());
    }
    drop(sender);
    server.await??;
    connection.await??;
    Ok(())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns the CPU time of this process, or 0 if the system does not tell.
fn cpu_us() -> f64 {
    const TICK_US: f64 = 10_000.0;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split(' ').skip(12).take(2);
    fields.filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() * TICK_US
}
