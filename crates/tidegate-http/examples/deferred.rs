//! Sends mail at most twice a second, over all instances. Mail over the limit is not rejected but added to a
//! Redis stream. Any idle instance sends it at the permitted rate. That includes mail that another instance
//! had started on when it was killed.
//!
//! ```console
//! $ TIDEGATE_REDIS_URL=redis://127.0.0.1:6379 LISTEN=127.0.0.1:3000 cargo run -p tidegate-http --features axum --example deferred
//! ```
//!
//! Its responses:
//!
//! ```console
//! $ for i in 1 2 3 4 5; do curl -s -w ' (%{http_code})\n' -d "mail $i" http://127.0.0.1:3000/mails; done
//! sent (200)
//! sent (200)
//! will be sent (202)
//! will be sent (202)
//! will be sent (202)
//! $ sleep 3; redis-cli LRANGE example-deferred:sent 0 -1
//! 1) "mail 1"
//! 2) "mail 2"
//! 3) "mail 3"
//! 4) "mail 4"
//! 5) "mail 5"
//! ```
#![allow(clippy::print_stdout, reason = "a program for the command line")]

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, cmd};
use tidegate::{Gate, Limiter, Quota, Rate};
use tokio::net::TcpListener;

const MAILS: Quota = Quota::token_bucket(2, Rate::per_second(2));

/// The stream of waiting mail, and the list of sent mail.
const QUEUE: &str = "example-deferred:queue";
const SENT: &str = "example-deferred:sent";

/// Above this number of waiting mails, the service responds with 429.
const MAX_WAITING: u64 = 1_000;

/// The consumer group of all instances.
const WORKERS: &str = "workers";

/// A job of an instance that has been silent for this time is taken over by another instance.
const ABANDONED_MS: u64 = 3_000;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// One job: its id in the stream, and the mail.
struct Job {
    id: String,
    mail: String,
}

#[derive(Clone)]
struct Service {
    gate: Gate,
    redis: MultiplexedConnection,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = std::env::var("TIDEGATE_REDIS_URL")?;
    let listen = std::env::var("LISTEN")?;
    let limiter = Limiter::builder()
        .url(&url)
        .namespace("example-deferred")
        .deadline(Duration::from_secs(2))
        .build()?;
    let gate = limiter.gate("mails", MAILS);
    let client = Client::open(url)?;
    let redis = client.get_multiplexed_async_connection().await?;

    let listener = TcpListener::bind(listen).await?;
    let address = listener.local_addr()?;
    println!("listening on {address}");
    let name = format!("{address}/{}", std::process::id());
    tokio::spawn(work(client, gate.clone(), name));
    let app = Router::new().route("/mails", post(accept)).with_state(Arc::new(Service { gate, redis }));
    axum::serve(listener, app).await?;
    Ok(())
}

async fn accept(State(service): State<Arc<Service>>, mail: String) -> (StatusCode, &'static str) {
    match accept_or_fail(&service, &mail).await {
        Ok(answer) => answer,
        Err(error) => {
            eprintln!("{error}");
            (StatusCode::SERVICE_UNAVAILABLE, "come back later")
        }
    }
}

async fn accept_or_fail(service: &Service, mail: &str) -> Result<(StatusCode, &'static str), Failure> {
    let mut redis = service.redis.clone();
    let waiting: u64 = cmd("XLEN").arg(QUEUE).query_async(&mut redis).await?;
    if waiting >= MAX_WAITING {
        return Ok((StatusCode::TOO_MANY_REQUESTS, "too many are waiting"));
    }
    // Waiting mail goes first.
    if waiting == 0 && service.gate.check("all").await?.is_allowed() {
        send(&mut redis, mail).await?;
        return Ok((StatusCode::OK, "sent"));
    }
    let () = cmd("XADD").arg(QUEUE).arg("*").arg("mail").arg(mail).query_async(&mut redis).await?;
    Ok((StatusCode::ACCEPTED, "will be sent"))
}

/// Sends a mail. A real service would talk to a mail server.
async fn send(redis: &mut MultiplexedConnection, mail: &str) -> redis::RedisResult<()> {
    cmd("RPUSH").arg(SENT).arg(mail).query_async(redis).await
}

/// Works as long as the process lives. After an error it starts again.
async fn work(client: Client, gate: Gate, name: String) {
    loop {
        if let Err(error) = work_until_it_fails(&client, &gate, &name).await {
            eprintln!("{error}");
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn work_until_it_fails(client: &Client, gate: &Gate, name: &str) -> Result<(), Failure> {
    // A separate connection, since waiting for work blocks it.
    let without_timeout = AsyncConnectionConfig::new().set_response_timeout(None);
    let mut redis = client.get_multiplexed_async_connection_with_config(&without_timeout).await?;
    let mut create = cmd("XGROUP");
    create.arg("CREATE").arg(QUEUE).arg(WORKERS).arg("0").arg("MKSTREAM");
    match create.query_async::<()>(&mut redis).await {
        Err(error) if error.code() != Some("BUSYGROUP") => return Err(error.into()),
        _ => {}
    }
    loop {
        let Some(job) = next(&mut redis, name).await? else { continue };
        loop {
            let decision = gate.check("all").await?;
            if decision.is_allowed() {
                break;
            }
            // Claims the job again, so that no other instance takes it over meanwhile.
            tokio::time::sleep(decision.retry_after().min(Duration::from_millis(ABANDONED_MS / 3))).await;
            let mut claim = cmd("XCLAIM");
            claim.arg(QUEUE).arg(WORKERS).arg(name).arg(0).arg(&job.id).arg("JUSTID");
            let () = claim.query_async(&mut redis).await?;
        }
        send(&mut redis, &job.mail).await?;
        // If the instance is killed before this, the mail is sent twice. To prevent that, a service would
        // send the job's id along, so that the receiver can detect duplicates.
        let mut done = redis::pipe();
        done.atomic().cmd("XACK").arg(QUEUE).arg(WORKERS).arg(&job.id).ignore();
        done.cmd("XDEL").arg(QUEUE).arg(&job.id).ignore();
        let () = done.query_async(&mut redis).await?;
    }
}

/// Returns an abandoned job, else the next one. Returns `None` after a second without work.
async fn next(redis: &mut MultiplexedConnection, name: &str) -> redis::RedisResult<Option<Job>> {
    type Entries = Vec<(String, Vec<String>)>;

    let mut take_over = cmd("XAUTOCLAIM");
    take_over.arg(QUEUE).arg(WORKERS).arg(name).arg(ABANDONED_MS).arg("0").arg("COUNT").arg(1);
    let (_, mut entries, _): (String, Entries, Vec<String>) = take_over.query_async(redis).await?;
    if entries.is_empty() {
        let mut read = cmd("XREADGROUP");
        read.arg("GROUP").arg(WORKERS).arg(name).arg("COUNT").arg(1).arg("BLOCK").arg(1_000);
        let streams: Option<Vec<(String, Entries)>> =
            read.arg("STREAMS").arg(QUEUE).arg(">").query_async(redis).await?;
        entries = streams.into_iter().flatten().flat_map(|(_, entries)| entries).collect();
    }
    let job = entries.pop().and_then(|(id, mut fields)| Some(Job { id, mail: fields.pop()? }));
    Ok(job)
}
