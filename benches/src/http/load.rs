//! The load generator: connections that each send one request after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::serve::{HEADER, Pattern};
use crate::{Failure, Length};

/// The results of all connections in one round.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) passed: u64,
    pub(super) denied: u64,
    pub(super) failed: u64,
    /// All requests, with those of the warm-up.
    pub(super) sent: u64,
    pub(super) took_ns: Histogram<u64>,
    pub(super) lasted: Duration,
    pub(super) cpu: Cpu,
}

/// CPU time per request, in us. Depends less on other load of the machine than requests per second do.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cpu {
    pub(super) service_us: f64,
    pub(super) redis_us: f64,
}

impl Round {
    pub(super) fn per_second(&self) -> f64 {
        (self.passed + self.denied) as f64 / self.lasted.as_secs_f64()
    }

    pub(super) fn us(&self, quantile: f64) -> f64 {
        self.took_ns.value_at_quantile(quantile) as f64 / 1000.0
    }
}

const WARM: u8 = 0;
const MEASURED: u8 = 1;
const OVER: u8 = 2;

pub(super) async fn round(
    port: u16,
    pattern: Pattern,
    connections: usize,
    length: Length,
) -> Result<Round, Failure> {
    let phase = Arc::new(AtomicU8::new(WARM));
    let mut tasks = Vec::new();
    for _ in 0..connections {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        tasks.push(tokio::spawn(send_requests(sender, pattern, phase.clone())));
    }
    tokio::time::sleep(length.warm).await;
    let begun = Instant::now();
    phase.store(MEASURED, Ordering::Relaxed);
    tokio::time::sleep(length.measured).await;
    phase.store(OVER, Ordering::Relaxed);
    let lasted = begun.elapsed();
    let mut round = Round {
        passed: 0,
        denied: 0,
        failed: 0,
        sent: 0,
        took_ns: Histogram::new(3)?,
        lasted,
        cpu: Cpu::default(),
    };
    for task in tasks {
        let Tally { statuses, sent, took_ns } = task.await??;
        round.sent += sent;
        round.passed += statuses[0];
        round.denied += statuses[1];
        round.failed += statuses[2];
        for took_ns in took_ns {
            round.took_ns.record(took_ns)?;
        }
    }
    Ok(round)
}

/// The results of one connection.
#[derive(Default)]
struct Tally {
    /// Measured responses with 200, 429 and any other status.
    statuses: [u64; 3],
    /// All requests, with those of the warm-up.
    sent: u64,
    /// The time of each measured response.
    took_ns: Vec<u64>,
}

async fn send_requests(
    mut sender: SendRequest<Empty<Bytes>>,
    pattern: Pattern,
    phase: Arc<AtomicU8>,
) -> Result<Tally, Failure> {
    let mut tally = Tally::default();
    loop {
        let key = pattern.key();
        let request = Request::get("/").header("host", "bench").header(HEADER, key).body(Empty::new())?;
        let begun = Instant::now();
        sender.ready().await?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        response.into_body().collect().await?;
        tally.sent += 1;
        match phase.load(Ordering::Relaxed) {
            WARM => continue,
            OVER => return Ok(tally),
            _ => tally.took_ns.push(begun.elapsed().as_nanos() as u64),
        }
        tally.statuses[match status {
            StatusCode::OK => 0,
            StatusCode::TOO_MANY_REQUESTS => 1,
            _ => 2,
        }] += 1;
    }
}
