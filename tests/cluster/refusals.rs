//! Counts how often each call is sent to a node that closes the connection or replies with an error.

use std::sync::{Arc, Mutex};

use tidegate::{Limiter, Quota};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::MINUTE;
use crate::support::fixture::{PATIENCE, soon};

/// The node replies once on each connection, then closes it.
const ONCE: &str = "once";

/// Starts a node that owns all slots. It closes the connection when a script is called, or replies with
/// `reply_to_scripts`. Returns its URL and the calls that it received.
async fn node(reply_to_scripts: &'static str) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let sent = Arc::new(Mutex::new(Vec::new()));
    let log = sent.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, port, reply_to_scripts, log.clone()));
        }
    });
    (format!("redis://127.0.0.1:{port}"), sent)
}

async fn serve(
    stream: TcpStream,
    port: u16,
    reply_to_scripts: &str,
    log: Arc<Mutex<Vec<String>>>,
) -> Option<()> {
    let mut stream = BufReader::new(stream);
    let mut was_called = false;
    loop {
        let command = command(&mut stream).await?;
        let reply = match &*command[0].to_uppercase() {
            "CLUSTER" => {
                format!(
                    "*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$40\r\n{:040}\r\n",
                    1
                )
            }
            "EVALSHA" | "EVAL" => {
                log.lock().unwrap().push(command[0].clone());
                let is_first = !std::mem::replace(&mut was_called, true);
                match reply_to_scripts {
                    "" => return None,
                    ONCE if is_first => "-ERR later\r\n".to_owned(),
                    ONCE => return None,
                    _ => format!("-{reply_to_scripts}\r\n"),
                }
            }
            "PING" => "+PONG\r\n".to_owned(),
            _ => "+OK\r\n".to_owned(),
        };
        stream.write_all(reply.as_bytes()).await.ok()?;
    }
}

async fn command(stream: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    let mut words = Vec::new();
    for _ in 0..length(stream).await? {
        let mut word = vec![0; length(stream).await? + 2];
        stream.read_exact(&mut word).await.ok()?;
        words.push(String::from_utf8_lossy(&word).trim_end().to_owned());
    }
    Some(words)
}

async fn length(stream: &mut BufReader<TcpStream>) -> Option<usize> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    line.get(1..)?.trim_end().parse().ok()
}

fn limiter(url: &str) -> Limiter {
    let builder = Limiter::builder().cluster([url]).deadline(PATIENCE).follow_overrides(false);
    builder.on_failure(tidegate::OnFailure::Error).instances(1).stderr_warnings(false).build().unwrap()
}

#[tokio::test]
async fn lost_refund_is_not_retried_and_lost_check_is_retried_at_most_once() {
    let (url, sent) = node("").await;
    let gate = limiter(&url).gate("gate", Quota::fixed_window(5, MINUTE));
    let count = || std::mem::take(&mut *sent.lock().unwrap()).len();
    // Repeats the call until it is sent: after a connection that got no reply the limiter backs off.
    macro_rules! sent {
        ($call:expr) => {{
            let mut sent = 0;
            soon("it is sent", async || {
                assert!($call.await.unwrap_err().is_unavailable());
                sent = count();
                sent > 0
            })
            .await;
            sent
        }};
    }
    for _ in 0..2 {
        assert_eq!(sent!(gate.refund("key", 1)), 1);
        assert_eq!(sent!(gate.reset("key")), 1);
        assert_eq!(sent!(gate.unblock("key")), 1);
        // The limiter may back off before the second attempt.
        assert!((1..=2).contains(&sent!(gate.check("key"))));
    }
}

#[tokio::test]
async fn lost_check_on_a_used_connection_is_sent_exactly_twice() {
    let (url, sent) = node(ONCE).await;
    let gate = limiter(&url).gate("gate", Quota::fixed_window(5, MINUTE));
    let count = || std::mem::take(&mut *sent.lock().unwrap()).len();
    for _ in 0..20 {
        // Uses up the only reply of a new connection, or of the connection of the previous take.
        assert!(gate.peek("key").await.unwrap_err().to_string().contains("ERR later"));
        count();
        assert!(gate.refund("key", 1).await.unwrap_err().is_unavailable());
        assert_eq!(count(), 1);
        assert!(gate.peek("key").await.unwrap_err().to_string().contains("ERR later"));
        assert_eq!(count(), 1);
        // The second connection loses the call, the third replies.
        assert!(gate.check("key").await.unwrap_err().to_string().contains("ERR later"));
        assert_eq!(count(), 2);
    }
}

#[tokio::test]
async fn cluster_errors_keep_their_text() {
    for (error_reply, expected) in [
        ("CLUSTERDOWN The cluster is down", "Redis rejected the call: CLUSTERDOWN The cluster is down"),
        ("TRYAGAIN Multiple keys", "Redis rejected the call: TRYAGAIN Multiple keys"),
        ("MASTERDOWN Link with MASTER is down", "Link with MASTER is down"),
        ("LOADING Redis is loading", "Redis is loading"),
    ] {
        let (url, sent) = node(error_reply).await;
        let gate = limiter(&url).gate("gate", Quota::fixed_window(5, MINUTE));
        let error = gate.check("key").await.unwrap_err();
        assert!(error.is_unavailable() && !error.is_timeout(), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(sent.lock().unwrap().len(), 1);
    }
}

#[tokio::test]
async fn redirects_to_an_unreachable_node_end_in_an_error() {
    let (url, sent) = node("MOVED 1 127.0.0.1:1").await;
    let gate = limiter(&url).gate("gate", Quota::fixed_window(5, MINUTE));
    let error = gate.check("key").await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("MOVED"), "{error}");
    assert_eq!(sent.lock().unwrap().len(), 8);
}

#[test]
fn a_limiter_that_outlives_a_runtime_connects_in_the_next() {
    let cluster = tidegate_testkit::shared_cluster();
    let gate = super::builder(&cluster).build().unwrap().gate("gate", Quota::fixed_window(5, MINUTE));
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for left in [4, 3, 2] {
        assert_eq!(runtime().block_on(gate.check("key")).unwrap().remaining(), left);
    }
}

#[tokio::test]
async fn server_that_is_not_a_node_of_a_cluster_is_refused() {
    let server = tidegate_testkit::shared();
    for url in [server.url().to_owned(), format!("{}?protocol=resp3", server.url())] {
        let gate = limiter(&url).gate("gate", Quota::fixed_window(5, MINUTE));
        let error = gate.check("key").await.unwrap_err();
        assert!(error.is_unavailable(), "{error}");
        assert!(
            error.to_string().contains("is not a node of a Redis Cluster (its cluster mode is off)"),
            "{error}"
        );
    }
}
