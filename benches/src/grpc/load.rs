//! The load generator: HTTP/2 connections, each with many requests in flight.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use hdrhistogram::Histogram;
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate_server::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tidegate_server::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tidegate_server::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tidegate_server::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tidegate_server::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tokio::net::TcpStream;
use tokio::time::sleep_until;
use tonic::body::Body;
use tower::util::{BoxCloneSyncService, service_fn};

use super::services::{DOMAIN, KEY};
use crate::{Failure, Length};

/// The number of keys of [`Pattern::Unlike`].
const KEYS: usize = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pattern {
    /// One of 100,000 keys per request.
    Unlike,
    /// A single key.
    Hot,
}

impl Pattern {
    pub(super) const ALL: [Self; 2] = [Self::Unlike, Self::Hot];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Unlike => "unlike",
            Self::Hot => "hot",
        }
    }

    fn value(self) -> String {
        match self {
            Self::Unlike => format!("user-{}", fastrand::usize(..KEYS)),
            Self::Hot => "user".to_owned(),
        }
    }

    fn request(self) -> RateLimitRequest {
        let entries = vec![Entry { key: KEY.to_owned(), value: self.value() }];
        let descriptors = vec![RateLimitDescriptor { entries, ..Default::default() }];
        RateLimitRequest { domain: DOMAIN.to_owned(), descriptors, hits_addend: 1 }
    }
}

/// The connections of a load, and the requests that each has in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) connections: usize,
    pub(super) in_flight: usize,
}

impl Shape {
    /// Many proxies, and a single worker of one.
    pub(super) const ALL: [Self; 2] =
        [Self { connections: 16, in_flight: 32 }, Self { connections: 1, in_flight: 128 }];
}

/// How requests are sent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pace {
    /// Each one when the previous one is answered.
    Saturated,
    /// At this rate of all connections together, whether or not responses arrive.
    PerSecond(f64),
}

/// The results of all connections in one round.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) allowed: u64,
    pub(super) denied: u64,
    pub(super) failed: u64,
    pub(super) first_error: Option<String>,
    pub(super) took_ns: Histogram<u64>,
    pub(super) lasted: Duration,
    /// CPU time of the service's process, if the system reports it.
    pub(super) service_cpu: Option<Duration>,
    /// CPU time of Redis's main thread.
    pub(super) redis_cpu: Duration,
}

impl Round {
    pub(super) fn decisions(&self) -> u64 {
        self.allowed + self.denied
    }

    pub(super) fn per_second(&self) -> f64 {
        self.decisions() as f64 / self.lasted.as_secs_f64()
    }

    /// Returns the decisions per second of CPU time of the service: what one core would decide.
    pub(super) fn per_core(&self) -> f64 {
        self.service_cpu.map_or(f64::NAN, |cpu| self.decisions() as f64 / cpu.as_secs_f64())
    }

    pub(super) fn redis_us(&self) -> f64 {
        self.redis_cpu.as_secs_f64() * 1e6 / self.decisions() as f64
    }

    pub(super) fn us(&self, quantile: f64) -> f64 {
        self.took_ns.value_at_quantile(quantile) as f64 / 1000.0
    }
}

type Connection = BoxCloneSyncService<Request<Body>, Response<Incoming>, hyper::Error>;
type Client = RateLimitServiceClient<Connection>;

/// Opens a connection. It is hyper's own: tonic's channel adds a queue and reconnects, whose CPU time the services
/// would lack.
async fn connect(port: u16) -> Result<Client, Failure> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let send = move |request| {
        let mut sender: SendRequest<Body> = sender.clone();
        async move { sender.send_request(request).await }
    };
    let origin = Uri::try_from(format!("http://127.0.0.1:{port}"))?;
    Ok(RateLimitServiceClient::with_origin(BoxCloneSyncService::new(service_fn(send)), origin))
}

const WARM: u8 = 0;
const MEASURED: u8 = 1;
const OVER: u8 = 2;

/// A round of load. `usage` returns the CPU times of the service and of Redis so far.
pub(super) async fn round(
    port: u16,
    pattern: Pattern,
    shape: Shape,
    pace: Pace,
    length: Length,
    usage: impl Fn() -> Result<(Option<Duration>, Duration), Failure>,
) -> Result<Round, Failure> {
    let phase = Arc::new(AtomicU8::new(WARM));
    let senders = shape.connections * shape.in_flight;
    let start = Instant::now();
    let mut tasks = Vec::with_capacity(senders);
    for connection in 0..shape.connections {
        let client = connect(port).await?;
        for sender in 0..shape.in_flight {
            // The turns of one connection are spread over the interval, too.
            let turn = sender * shape.connections + connection;
            let schedule = Schedule::new(pace, senders, turn, start);
            tasks.push(tokio::spawn(send_requests(client.clone(), pattern, schedule, phase.clone())));
        }
    }
    tokio::time::sleep(length.warm).await;
    let (service_before, redis_before) = usage()?;
    let begun = Instant::now();
    phase.store(MEASURED, Ordering::Relaxed);
    tokio::time::sleep(length.measured).await;
    phase.store(OVER, Ordering::Relaxed);
    let lasted = begun.elapsed();
    let (service, redis) = usage()?;
    let mut round = Round {
        allowed: 0,
        denied: 0,
        failed: 0,
        first_error: None,
        took_ns: Histogram::new(3)?,
        lasted,
        service_cpu: service.zip(service_before).map(|(after, before)| after.saturating_sub(before)),
        redis_cpu: redis.saturating_sub(redis_before),
    };
    for task in tasks {
        let tally = task.await?;
        round.allowed += tally.allowed;
        round.denied += tally.denied;
        round.failed += tally.failed;
        round.first_error = round.first_error.or(tally.first_error);
        for took in tally.took_ns {
            round.took_ns.record(took)?;
        }
    }
    Ok(round)
}

/// Requests in flight of [`send`].
const SEND_IN_FLIGHT: u64 = 64;

/// Sends this number of requests over one connection. All of them must be admitted.
pub(super) async fn send(port: u16, pattern: Pattern, requests: u64) -> Result<(), Failure> {
    let client = connect(port).await?;
    let left = Arc::new(AtomicU64::new(requests));
    let tasks: Vec<_> = (0..SEND_IN_FLIGHT)
        .map(|_| {
            let (mut client, left) = (client.clone(), left.clone());
            tokio::spawn(async move {
                let take = |left: u64| left.checked_sub(1);
                while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
                    let response = client.should_rate_limit(pattern.request()).await?.into_inner();
                    if response.overall_code() != Code::Ok {
                        return Err(format!("a request got {:?}", response.overall_code()).into());
                    }
                }
                Ok::<_, Failure>(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    Ok(())
}

/// When one of the senders sends.
struct Schedule {
    /// `None`: at once.
    next: Option<Instant>,
    interval: Duration,
}

impl Schedule {
    fn new(pace: Pace, senders: usize, turn: usize, start: Instant) -> Self {
        match pace {
            Pace::Saturated => Self { next: None, interval: Duration::ZERO },
            Pace::PerSecond(rate) => {
                let interval = Duration::from_secs_f64(senders as f64 / rate);
                Self { next: Some(start + interval.mul_f64(turn as f64 / senders as f64)), interval }
            }
        }
    }

    /// Waits for the next turn, and returns the time from which a response counts: if the previous response was late,
    /// the time at which this request was due. The lateness of timers does not count.
    async fn wait(&mut self) -> Instant {
        let Some(due) = self.next else { return Instant::now() };
        self.next = Some(due + self.interval);
        if due <= Instant::now() {
            return due;
        }
        sleep_until(due.into()).await;
        Instant::now()
    }
}

#[derive(Debug, Default)]
struct Tally {
    allowed: u64,
    denied: u64,
    failed: u64,
    first_error: Option<String>,
    took_ns: Vec<u64>,
}

async fn send_requests(
    mut client: Client,
    pattern: Pattern,
    mut schedule: Schedule,
    phase: Arc<AtomicU8>,
) -> Tally {
    let mut tally = Tally::default();
    loop {
        let begun = schedule.wait().await;
        // Also ends a sender whose next turn comes after the round.
        if phase.load(Ordering::Relaxed) == OVER {
            return tally;
        }
        let response = client.should_rate_limit(pattern.request()).await;
        match phase.load(Ordering::Relaxed) {
            WARM if response.is_ok() => continue,
            OVER => return tally,
            _ => tally.took_ns.push(begun.elapsed().as_nanos() as u64),
        }
        match response.map(|response| response.into_inner().overall_code()) {
            Ok(Code::Ok) => tally.allowed += 1,
            Ok(Code::OverLimit) => tally.denied += 1,
            Ok(Code::Unknown) => tally.failed += 1,
            Err(status) => {
                tally.failed += 1;
                tally.first_error.get_or_insert_with(|| status.to_string());
                // Without it, requests that fail at once would load all cores.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn paced_senders_share_the_rate_and_late_ones_count_from_their_turn() {
        let start = Instant::now();
        let mut second = Schedule::new(Pace::PerSecond(2.0), 2, 1, start);
        assert_eq!(second.interval, Duration::from_secs(1));
        assert_eq!(second.next, Some(start + Duration::from_millis(500)));
        let past = start - Duration::from_millis(1);
        second.next = Some(past);
        assert_eq!(second.wait().await, past);
        assert_eq!(second.next, Some(past + second.interval));
    }
}
