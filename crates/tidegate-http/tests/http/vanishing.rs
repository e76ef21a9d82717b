//! Clients that disconnect before the response, over real sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tidegate::{Gate, Quota, Rate};
use tidegate_http::{Abandoned, Charge, RateLimitLayer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::fixture::by_key;
use crate::support::fixture::{HOUR, limiter, soon};

const CLIENTS: usize = 50;

/// Starts a service that never responds on `/hang`. Returns its address and the number of running `/hang`
/// handlers.
async fn serve(layer: RateLimitLayer) -> (std::net::SocketAddr, Arc<AtomicUsize>) {
    struct Inside(Arc<AtomicUsize>);
    impl Drop for Inside {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let inside = Arc::new(AtomicUsize::new(0));
    let counted = inside.clone();
    let hang = move || {
        counted.fetch_add(1, Ordering::SeqCst);
        let inside = Inside(counted.clone());
        async move {
            std::future::pending::<()>().await;
            drop(inside);
        }
    };
    let app = Router::new().route("/hang", get(hang)).route("/", get(|| async { "hello" })).layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    (address, inside)
}

/// Sends a request and returns without reading the response.
async fn send_request(address: std::net::SocketAddr, path: &str) -> TcpStream {
    let mut client = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-api-key: a\r\n\r\n");
    client.write_all(request.as_bytes()).await.unwrap();
    client
}

async fn status(address: std::net::SocketAddr) -> String {
    let mut reply = String::new();
    send_request(address, "/").await.read_to_string(&mut reply).await.unwrap();
    reply.split(' ').nth(1).unwrap().to_owned()
}

async fn remaining(gate: &Gate) -> u64 {
    gate.peek("a").await.unwrap().remaining()
}

fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

#[tokio::test]
async fn disconnect_while_waiting_leaves_no_permit_task_or_charge() {
    let server = tidegate_testkit::shared();
    let gate = limiter(&server).gate("api", Quota::fixed_window(1, HOUR));
    let layer = RateLimitLayer::new(gate.clone(), by_key()).wait(2 * CLIENTS as u32 * HOUR, CLIENTS);
    let (address, _) = serve(layer).await;
    assert_eq!(status(address).await, "200");
    // The tasks of the service, of the Redis connection, of instance counting and of overrides.
    soon("the task of the connection has ended", async || tasks() <= 4).await;
    let before = tasks();
    for round in 0..3 {
        let mut waiting = Vec::new();
        for _ in 0..CLIENTS {
            waiting.push(send_request(address, "/").await);
        }
        soon("the wait queue is full", async || {
            // A request that enters the queue, ahead of a slower one, waits as the others do.
            let (mut client, mut reply) = (send_request(address, "/").await, String::new());
            let read = client.read_to_string(&mut reply);
            let is_done = tokio::time::timeout(Duration::from_millis(20), read).await.is_ok();
            waiting.push(client);
            is_done && reply.starts_with("HTTP/1.1 429")
        })
        .await;
        drop(waiting);
        soon("the wait queue is empty", async || {
            // A request that enters the queue waits, and disconnects at the timeout.
            let one = tokio::time::timeout(Duration::from_millis(20), status(address)).await;
            one.is_err() && tasks() <= before + 1
        })
        .await;
        soon("no task is left", async || tasks() <= before).await;
        assert_eq!(remaining(&gate).await, 0, "round {round}");
    }
    gate.reset("a").await.unwrap();
    assert_eq!(remaining(&gate).await, 1);
    assert_eq!(status(address).await, "200", "no request waits before this one");
}

#[tokio::test]
async fn disconnect_in_a_leaky_bucket_refunds_its_slot() {
    let server = tidegate_testkit::shared();
    let gate = limiter(&server).gate("api", Quota::leaky_bucket(1 + CLIENTS as u64, Rate::per_hour(1)));
    let (address, _) = serve(RateLimitLayer::new(gate.clone(), by_key())).await;
    assert_eq!(status(address).await, "200");
    let mut waiting = Vec::new();
    for _ in 0..CLIENTS {
        waiting.push(send_request(address, "/").await);
    }
    soon("the queue is full", async || remaining(&gate).await == 0).await;
    drop(waiting);
    // The part of each slot that drained in the meantime is not refunded: some thousandths of a unit.
    soon("all slots are refunded", async || remaining(&gate).await + 1 >= CLIENTS as u64).await;
}

#[tokio::test]
async fn disconnect_during_the_handler_is_charged_or_refunded_as_configured() {
    let server = tidegate_testkit::shared();
    for (name, abandoned, left) in
        [("charged", Abandoned::Charged, 50), ("refunded", Abandoned::Refunded, 100)]
    {
        let gate = limiter(&server).gate(name, Quota::fixed_window(100, HOUR));
        let charge = Charge::when(|response| response.status.is_success()).if_abandoned(abandoned);
        let (address, inside) = serve(RateLimitLayer::new(gate.clone(), by_key()).charge(charge)).await;
        assert_eq!(remaining(&gate).await, 100, "the first check also opens the connection");
        let before = tasks();
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(send_request(address, "/hang").await);
        }
        soon("all handlers run", async || inside.load(Ordering::SeqCst) == CLIENTS).await;
        assert_eq!(remaining(&gate).await, 50);
        drop(clients);
        soon("all handlers are dropped", async || inside.load(Ordering::SeqCst) == 0 && tasks() <= before)
            .await;
        // No task remains that could still change the count.
        assert_eq!(remaining(&gate).await, left, "{name}");
    }
}
