//! Clients that hang up, over sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tidegate::http::{Abandoned, Charge, RateLimitLayer};
use tidegate::{Gate, Quota, Rate};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::fixture::by_key;
use crate::support::fixture::{HOUR, limiter, soon};

const CLIENTS: usize = 50;

/// A service that never answers on `/hang`; how many are in there.
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

async fn ask(address: std::net::SocketAddr, path: &str) -> TcpStream {
    let mut client = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-api-key: a\r\n\r\n");
    client.write_all(request.as_bytes()).await.unwrap();
    client
}

async fn status(address: std::net::SocketAddr) -> String {
    let mut reply = String::new();
    ask(address, "/").await.read_to_string(&mut reply).await.unwrap();
    reply.split(' ').nth(1).unwrap().to_owned()
}

async fn remaining(gate: &Gate) -> u64 {
    gate.peek("a").await.unwrap().remaining()
}

fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

#[tokio::test]
async fn who_hangs_up_while_waiting_leaves_no_place_no_task_and_no_charge() {
    let server = harness::shared();
    let gate = limiter(&server).gate("api", Quota::fixed_window(1, HOUR));
    let layer = RateLimitLayer::new(gate.clone(), by_key()).wait(2 * HOUR, CLIENTS);
    let (address, _) = serve(layer).await;
    assert_eq!(status(address).await, "200");
    // The service, the connection to Redis, the count of instances and the orders.
    soon("the connection's task is gone", async || tasks() <= 4).await;
    let before = tasks();
    for round in 0..3 {
        let mut waiting = Vec::new();
        for _ in 0..CLIENTS {
            waiting.push(ask(address, "/").await);
        }
        soon("the room is full", async || status(address).await == "429").await;
        drop(waiting);
        soon("the room is empty", async || {
            // Who finds a place waits, and hangs up again.
            let one = tokio::time::timeout(Duration::from_millis(20), status(address)).await;
            one.is_err() && tasks() <= before + 1
        })
        .await;
        soon("no task is left", async || tasks() <= before).await;
        assert_eq!(remaining(&gate).await, 0, "round {round}");
    }
    gate.reset("a").await.unwrap();
    assert_eq!(remaining(&gate).await, 1);
    assert_eq!(status(address).await, "200", "nobody is in line before it");
}

#[tokio::test]
async fn who_hangs_up_in_a_leaky_buckets_queue_gives_his_place_back() {
    let server = harness::shared();
    let gate = limiter(&server).gate("api", Quota::leaky_bucket(1 + CLIENTS as u64, Rate::per_hour(1)));
    let (address, _) = serve(RateLimitLayer::new(gate.clone(), by_key())).await;
    assert_eq!(status(address).await, "200");
    let mut waiting = Vec::new();
    for _ in 0..CLIENTS {
        waiting.push(ask(address, "/").await);
    }
    soon("the queue is full", async || remaining(&gate).await == 0).await;
    drop(waiting);
    // Of each place what has drained meanwhile was not to be given back: some thousandths.
    soon("all places are given back", async || remaining(&gate).await + 1 >= CLIENTS as u64).await;
}

#[tokio::test]
async fn who_hangs_up_while_the_service_works_is_charged_or_given_back_as_it_is_set() {
    let server = harness::shared();
    for (name, abandoned, left) in
        [("charged", Abandoned::Charged, 50), ("given.back", Abandoned::GivenBack, 100)]
    {
        let gate = limiter(&server).gate(name, Quota::fixed_window(100, HOUR));
        let charge = Charge::when(|response| response.status.is_success()).if_abandoned(abandoned);
        let (address, inside) = serve(RateLimitLayer::new(gate.clone(), by_key()).charge(charge)).await;
        assert_eq!(remaining(&gate).await, 100, "from now on the limiter has its connection");
        let before = tasks();
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(ask(address, "/hang").await);
        }
        soon("all are inside", async || inside.load(Ordering::SeqCst) == CLIENTS).await;
        assert_eq!(remaining(&gate).await, 50);
        drop(clients);
        soon("all are gone", async || inside.load(Ordering::SeqCst) == 0 && tasks() <= before).await;
        // No task is left that could change it.
        assert_eq!(remaining(&gate).await, left, "{name}");
    }
}
