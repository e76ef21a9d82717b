//! A limiter replaces its connection if the server behind it no longer decides. Reconnects back off.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tidegate::{Gate, Limiter, Quota, Rate};
use tidegate_testkit::Server;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::support::door::{Door, port};
use crate::support::fixture::{PATIENCE, builder, soon};
use crate::support::hear::{end_before_a_reply, hear, lead_to};
use crate::support::stalls::{LostTime, extended};

const PLENTY: Quota = Quota::fixed_window(1_000_000, Duration::from_secs(3_600));

fn gate(url: &str) -> (Limiter, Gate) {
    let limiter = builder(url).build().unwrap();
    let gate = limiter.gate("gate", PLENTY);
    (limiter, gate)
}

/// Makes a server a replica of a primary that does not exist.
const DEMOTE: [&str; 3] = ["REPLICAOF", "127.0.0.1", "1"];

#[tokio::test]
async fn connection_to_a_demoted_primary_is_replaced() {
    for stale in ["yes", "no"] {
        // With stale data, the old primary replies READONLY. Without, it replies MASTERDOWN.
        let options = ["--replica-serve-stale-data", stale];
        let (old, new) = (Server::process(&options).unwrap(), Server::process(&[]).unwrap());
        let door = Door::to(port(old.url())).await;
        let (limiter, gate) = gate(&door.url());
        let two = limiter.gate("two", Quota::token_bucket(1_000_000, Rate::per_second(1)));
        assert!(gate.check("key").await.unwrap().is_allowed());
        first_pause().await;
        old.cli(&DEMOTE).unwrap();
        door.lead_to(port(new.url()));

        // Also covers a group, whose error reply starts with a number.
        assert!(limiter.check_all([two.key("key"), gate.key("key")]).await.unwrap().is_allowed());
        assert_eq!(door.taken(), 2, "stale {stale}");
        assert_eq!(gate.peek("key").await.unwrap().remaining(), 999_999);
    }
}

#[tokio::test]
async fn refund_sent_to_a_demoted_primary_is_applied_once_by_the_new_one() {
    let (old, new) = (Server::process(&[]).unwrap(), Server::process(&[]).unwrap());
    let door = Door::to(port(old.url())).await;
    let (_limiter, gate) = gate(&door.url());
    let (_other, same) = {
        // Uses the same keys on the new primary.
        let limiter = Limiter::builder().url(new.url()).namespace("same").deadline(PATIENCE).build().unwrap();
        let gate = limiter.gate("gate", PLENTY);
        (limiter, gate)
    };
    let limiter = Limiter::builder().url(&door.url()).namespace("same").deadline(PATIENCE).build().unwrap();
    let moved = limiter.gate("gate", PLENTY);
    assert!(moved.check_cost("key", 5).await.unwrap().is_allowed());
    assert!(same.check_cost("key", 5).await.unwrap().is_allowed());
    assert!(gate.check("other").await.unwrap().is_allowed());
    first_pause().await;
    old.cli(&DEMOTE).unwrap();
    door.lead_to(port(new.url()));

    moved.refund("key", 2).await.unwrap();
    assert_eq!(same.peek("key").await.unwrap().remaining(), 999_997);
}

#[tokio::test]
async fn reconnects_to_a_replica_back_off() {
    let server = Server::process(&[]).unwrap();
    let door = Door::to(port(server.url())).await;
    let (_limiter, gate) = gate(&door.url());
    assert!(gate.check("key").await.unwrap().is_allowed());
    server.cli(&DEMOTE).unwrap();
    let errors = errors_of_a_second(&gate, 4).await;
    assert!(errors.iter().any(|error| error.contains("READONLY")), "{:?}", errors.first());
    assert!((3..=12).contains(&door.taken()), "{}", door.taken());

    server.cli(&["REPLICAOF", "NO", "ONE"]).unwrap();
    assert_recovers(&gate).await;
}

#[tokio::test]
async fn reconnects_back_off_and_checks_meanwhile_fail_at_once() {
    let server = Server::process(&[]).unwrap();
    let door = Door::to(None).await;
    let (_limiter, gate) = gate(&door.url());
    let errors = errors_of_a_second(&gate, 50).await;
    // The backoff is 10 ms, 20 ms, 40 ms and so on. Jitter shortens each pause by up to half.
    assert!((5..=9).contains(&door.taken()), "{}", door.taken());
    assert!(errors.len() > 5_000, "{}", errors.len());

    door.lead_to(port(server.url()));
    assert_recovers(&gate).await;
}

#[tokio::test]
async fn reconnects_with_a_wrong_password_back_off() {
    let server = Server::process(&[]).unwrap();
    server.cli(&["CONFIG", "SET", "requirepass", "right"]).unwrap();
    let door = Door::to(port(server.url())).await;
    let limiter = builder(&door.url()).credentials("default", "wrong").build().unwrap();
    let gate = limiter.gate("gate", PLENTY);
    let errors = errors_of_a_second(&gate, 4).await;
    assert!(errors.iter().all(|error| error.contains("credentials")), "{}", errors[0]);
    assert!((5..=9).contains(&door.taken()), "{}", door.taken());
}

#[tokio::test]
async fn connection_that_got_replies_is_replaced_at_once() {
    let server = Server::process(&[]).unwrap();
    let door = Door::to(port(server.url())).await;
    let (_limiter, gate) = gate(&door.url());
    for cut in 0..200 {
        assert!(gate.check("key").await.unwrap().is_allowed());
        assert_eq!(door.taken(), cut + 1);
        door.cut();
    }
}

/// The server accepted it, so its end says nothing about the next one.
#[tokio::test]
async fn first_connection_that_ends_before_a_reply_is_replaced_at_once() {
    let server = Server::process(&[]).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (_limiter, gate) = gate(&format!("redis://{}", listener.local_addr().unwrap()));
    let closing = async {
        end_before_a_reply(&listener).await;
        lead_to(&listener, port(server.url())).await;
    };
    let (checked, ()) = tokio::join!(gate.check("key"), closing);
    assert!(checked.unwrap().is_allowed());
}

#[tokio::test]
async fn later_connections_that_end_before_a_reply_back_off() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (_limiter, gate) = gate(&format!("redis://{}", listener.local_addr().unwrap()));
    let taken = Arc::new(AtomicUsize::new(0));
    let closing = tokio::spawn({
        let taken = taken.clone();
        async move {
            loop {
                end_before_a_reply(&listener).await;
                taken.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    let errors = errors_of_a_second(&gate, 4).await;
    assert!(errors.len() > 1_000, "{}", errors.len());
    assert!((5..=10).contains(&taken.load(Ordering::SeqCst)), "{taken:?}");
    closing.abort();
}

#[tokio::test]
async fn limiter_recovers_after_redis_has_loaded_its_data() {
    let server = Arc::new(Server::process(&["--enable-debug-command", "yes"]).unwrap());
    server.cli(&["DEBUG", "POPULATE", "4000", "filler", "1000"]).unwrap();
    // Delays each of the 4,000 keys by 2 ms, so that a busy machine observes the loading, too.
    for (name, value) in [("key-load-delay", "2000"), ("loading-process-events-interval-bytes", "1024")] {
        server.cli(&["CONFIG", "SET", name, value]).unwrap();
    }
    let (_limiter, gate) = gate(server.url());
    assert!(gate.check("key").await.unwrap().is_allowed());
    let reloaded = server.clone();
    let loading = tokio::task::spawn_blocking(move || reloaded.cli(&["DEBUG", "RELOAD"]));
    soon("Redis replies LOADING", async || {
        let result = gate.check("key").await;
        result.is_err_and(|error| error.is_unavailable() && error.to_string().contains("LOADING"))
    })
    .await;
    server.cli(&["CONFIG", "SET", "key-load-delay", "0"]).unwrap();
    loading.await.unwrap().unwrap();
    assert_recovers(&gate).await;
}

#[tokio::test]
async fn retry_during_shutdown_opens_no_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (limiter, gate) = gate(&format!("redis://{}", listener.local_addr().unwrap()));
    let check = tokio::spawn(async move { gate.check("key").await });
    let (mut server, _) = listener.accept().await.unwrap();
    hear(&mut server, "PING").await;
    server.write_all(b"+PONG\r\n").await.unwrap();
    hear(&mut server, "EVALSHA").await;
    limiter.shutdown().await;
    drop(server);
    let error = check.await.unwrap().unwrap_err();
    assert!(error.is_shut_down(), "{error}");
}

/// Waits for the first backoff pause. A connection younger than this is not replaced at once.
async fn first_pause() {
    let start = Instant::now();
    soon("the first pause is over", async || start.elapsed() > Duration::from_millis(10)).await;
}

/// Returns the errors that `callers` callers get in one second, each of which checks without a pause.
async fn errors_of_a_second(gate: &Gate, callers: usize) -> Vec<String> {
    let mut tasks = JoinSet::new();
    let end = Instant::now() + Duration::from_secs(1);
    for _ in 0..callers {
        let gate = gate.clone();
        tasks.spawn(async move {
            let mut errors = Vec::new();
            while Instant::now() < end {
                if let Err(error) = gate.check("key").await {
                    assert!(error.is_unavailable() && !error.is_timeout(), "{error}");
                    errors.push(error.to_string());
                }
            }
            errors
        });
    }
    tasks.join_all().await.concat()
}

/// Asserts that Redis decides again within two seconds: the longest backoff pause of one second, and time to
/// connect.
async fn assert_recovers(gate: &Gate) {
    let (lost, start) = (LostTime::start(&["self".to_owned()]), Instant::now());
    soon("Redis decides again", async || gate.check("key").await.is_ok()).await;
    let (took, stalled) = (start.elapsed(), lost.end());
    assert!(took < extended(Duration::from_secs(2), stalled), "{took:?}, stalled for {stalled:?}");
}

#[tokio::test]
async fn credentials_provider_is_called_for_each_new_connection() {
    let server = Server::process(&[]).unwrap();
    let user = |password: &str| {
        let password = format!(">{password}");
        let rules = ["~*", "+@all", "on", "resetpass", &password];
        server.cli(&[&["ACL", "SETUSER", "limits"], &rules[..]].concat()).unwrap();
    };
    user("first");
    let vault = Arc::new(Mutex::new(Some("first")));
    let provider = vault.clone();
    let limiter = builder(server.url()).credentials_provider(move || {
        let password = provider.lock().unwrap().ok_or("the vault is sealed");
        async move { password.map(|password| ("limits".to_owned(), password.to_owned())) }
    });
    assert!(!format!("{limiter:?}").contains("first"));
    let limiter = limiter.build().unwrap();
    let gate = limiter.gate("gate", PLENTY);
    assert!(gate.check("key").await.unwrap().is_allowed());

    user("second");
    assert!(gate.check("key").await.unwrap().is_allowed(), "an open connection stays usable");
    *vault.lock().unwrap() = Some("second");
    server.cli(&["CLIENT", "KILL", "USER", "limits"]).unwrap();
    assert!(gate.check("key").await.unwrap().is_allowed());

    *vault.lock().unwrap() = None;
    server.cli(&["CLIENT", "KILL", "USER", "limits"]).unwrap();
    let error = gate.check("key").await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("the vault is sealed"), "{error}");
    *vault.lock().unwrap() = Some("second");
    assert_recovers(&gate).await;
}
