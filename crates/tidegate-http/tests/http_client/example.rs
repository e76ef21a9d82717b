//! Runs `examples/outgoing.rs` and `examples/deferred.rs` as processes.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use futures_util::future::join_all;
use tidegate_testkit::Server;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;
use tokio::time::timeout;

use crate::support::fixture::{PATIENCE, soon};

fn example(name: &str) -> Command {
    let test = std::env::current_exe().unwrap();
    let path: PathBuf = test.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(
        path.exists(),
        "`cargo test` builds the examples, `cargo test --test` does not: cargo build --examples"
    );
    Command::new(path)
}

#[test]
fn two_instances_keep_the_limit_of_another_service() {
    let server = Server::process(&[]).unwrap();
    let output = example("outgoing").env("TIDEGATE_REDIS_URL", server.url()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));

    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("without the layer: 60 requests, "), "{text}");
    assert!(!lines[0].contains(" 0 answered 429"), "{text}");
    let took = lines[1].strip_prefix("with the layer: 60 requests, 60 answered 200, 0 answered 429, in ");
    let took: f64 = took.unwrap().strip_suffix(" s").unwrap().parse().unwrap();
    assert!(took >= 11.5, "{text}");
    let after =
        lines[2].strip_prefix("the first was rejected for 2 s; the second sent its next request after ");
    let seconds: f64 = after.unwrap().strip_suffix(" s").unwrap().parse().unwrap();
    assert!((1.9..30.0).contains(&seconds), "{text}");
}

/// An instance of examples/deferred.rs. Ends when dropped.
struct Deferring {
    url: String,
    process: Child,
}

impl Deferring {
    async fn start(server: &Server) -> Self {
        let mut process = tokio::process::Command::from(example("deferred"))
            .env("TIDEGATE_REDIS_URL", server.url())
            .env("LISTEN", "127.0.0.1:0")
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let line = timeout(PATIENCE, lines.next_line())
            .await
            .expect("the example prints no address")
            .unwrap()
            .unwrap();
        let address = line.strip_prefix("listening on ").unwrap();
        Self { url: format!("http://{address}/mails"), process }
    }

    async fn post(&self, mail: String) -> StatusCode {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        client.post(&self.url).body(mail).send().await.unwrap().status()
    }
}

fn sent(server: &Server) -> Vec<String> {
    let sent = server.cli(&["LRANGE", "example-deferred:sent", "0", "-1"]).unwrap();
    // Each line has the format `1) "mail-0"`.
    sent.lines().filter_map(|line| Some(line.split('"').nth(1)?.to_owned())).collect()
}

#[tokio::test]
async fn deferred_work_keeps_the_rate_when_an_instance_is_killed() {
    let server = Server::process(&[]).unwrap();
    let (mut one, other) = (Deferring::start(&server).await, Deferring::start(&server).await);
    let mails: Vec<_> = (0..12).map(|i| format!("mail-{i}")).collect();
    let start = Instant::now();
    let instances = [&one, &other];
    let posts = mails.iter().enumerate().map(|(index, mail)| instances[index % 2].post(mail.clone()));
    let statuses = join_all(posts).await;
    let count = |status| statuses.iter().filter(|&&found| found == status).count();
    let (now, later) = (count(StatusCode::OK), count(StatusCode::ACCEPTED));
    assert_eq!(now + later, mails.len(), "{statuses:?}");
    assert!(now >= 1 && later >= 1, "{statuses:?}");

    let sent_in_time = || {
        let sent = sent(&server);
        let permitted = 2 + start.elapsed().as_millis() / 500;
        assert!(sent.len() as u128 <= permitted, "{sent:?} were sent, {permitted} are permitted");
        sent
    };
    soon("some mails are sent", async || sent_in_time().len() >= 5).await;
    one.process.kill().await.unwrap();
    soon("more mails are sent", async || sent_in_time().len() >= 8).await;
    soon("all mails are sent", async || {
        sent_in_time().iter().collect::<BTreeSet<_>>() == mails.iter().collect()
    })
    .await;
    // Only the mail in flight when the instance was killed may be sent twice.
    assert!(sent(&server).len() <= mails.len() + 1);
    assert!(start.elapsed() >= Duration::from_secs(5));
    let left = server.cli(&["XLEN", "example-deferred:queue"]).unwrap();
    assert_eq!(left, "(integer) 0");
}
