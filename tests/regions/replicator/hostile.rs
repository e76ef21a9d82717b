//! Entries that tidegate does not write, and servers that refuse a command.

use tidegate::regions::replicator::Replicator;

use super::site::{self, key, replicate, settings, settings_of, sites, status};
use super::wait_for_cursors;
use crate::support::fixture::soon;

fn field(key: &str) -> String {
    format!("charge sliding_log,10,60000000,0,0,20,0 0 {key}")
}

#[tokio::test]
async fn entry_that_does_not_parse_is_skipped_and_counted() {
    let mut sites = sites(2);
    let replicators = replicate(&sites);
    wait_for_cursors(&mut sites).await;
    let cursor = site::keys().cursor("us");
    let good = field(&key(9, "good"));
    let long = field(&key(9, &"x".repeat(5_000)));
    let foreign = field(&cursor);
    let reset = good.replace("charge", "reset").replace(&key(9, "good"), &cursor);
    let mut skipped = 0;
    for (bad, amount) in [
        (&b""[..], &b"1"[..]),
        (b"charge", b"1"),
        (b"\xff\xfe", b"1"),
        (good.as_bytes(), b"\xff"),
        (good.as_bytes(), b"1e9"),
        (good.as_bytes(), b"99999999999999999999"),
        (good.as_bytes(), b"562949953421313"),
        (foreign.as_bytes(), b"1"),
        (reset.as_bytes(), b"0"),
        (long.as_bytes(), b"1"),
        (b"grant os.exit 0 state:a", b"1"),
    ] {
        sites[1].append(&[(bad, amount), (good.as_bytes(), b"1")]);
        skipped += 1;
    }
    // More changes than a flush moves.
    let many: Vec<String> = (0..129).map(|subject| field(&key(9, &subject.to_string()))).collect();
    let many: Vec<(&[u8], &[u8])> = many.iter().map(|field| (field.as_bytes(), &b"1"[..])).collect();
    sites[1].append(&many);
    skipped += many.len() as u64;
    soon("all are read", async || sites[0].cursor("us").unwrap().position.1 == sites[1].end()).await;
    soon("they are counted", async || status(&replicators[0], "us").skipped == skipped).await;
    let state = status(&replicators[0], "us");
    assert_eq!((state.applied, state.failed), (11, 0), "{state:?}");
    assert!(state.error.is_none(), "{state:?}");
    let names: Vec<String> = redis::cmd("KEYS").arg(key(9, "*")).query(&mut sites[0].connection).unwrap();
    assert_eq!(names, [key(9, "good")]);
    // Reading goes on.
    sites[1].charge(0, "ann", 3);
    soon("the next charge arrives", async || sites[0].used_by(0, "ann") == 3).await;
}

#[tokio::test]
async fn key_with_the_state_of_another_writer_fails_alone() {
    let mut sites = sites(2);
    let replicators = replicate(&sites);
    wait_for_cursors(&mut sites).await;
    redis::cmd("SET").arg(key(0, "bad")).arg("text").exec(&mut sites[0].connection).unwrap();
    sites[1].charge(0, "bad", 1);
    sites[1].charge(0, "ann", 2);
    soon("the other charge arrives", async || sites[0].used_by(0, "ann") == 2).await;
    soon("the failure is counted", async || status(&replicators[0], "us").failed == 1).await;
}

/// The epoch, the cursor and the stream are texts of others.
#[tokio::test]
async fn corrupt_text_is_an_error_until_it_is_gone() {
    let mut sites = sites(2);
    let replicator = Replicator::start(settings(&sites, 0)).unwrap();
    let peer = Replicator::start(settings(&sites, 1)).unwrap();
    wait_for_cursors(&mut sites).await;
    drop(peer);
    let epoch: String = redis::cmd("GETSET")
        .arg(site::keys().epoch)
        .arg("no number")
        .query(&mut sites[1].connection)
        .unwrap();
    soon("the epoch is an error", async || status(&replicator, "us").error.is_some()).await;
    redis::cmd("SET").arg(site::keys().epoch).arg(epoch).exec(&mut sites[1].connection).unwrap();
    soon("it is no error", async || status(&replicator, "us").error.is_none()).await;
    redis::cmd("SET").arg(site::keys().cursor("us")).arg("text").exec(&mut sites[0].connection).unwrap();
    soon("the cursor is an error", async || {
        status(&replicator, "us").error.is_some_and(|error| error.to_string().contains("corrupt cursor"))
    })
    .await;
    redis::cmd("DEL").arg(site::keys().cursor("us")).exec(&mut sites[0].connection).unwrap();
    soon("it is no error", async || status(&replicator, "us").error.is_none()).await;
}

#[tokio::test]
async fn peer_that_refuses_acknowledgements_is_read() {
    let mut sites = sites(2);
    let rights = ["+get", "+ping", "+time", "+xinfo", "+xread"];
    let user = ["ACL", "SETUSER", "reader", "on", ">secret", "~tidegate:1:regions:*"];
    sites[1].server.cli(&[&user[..], &rights].concat()).unwrap();
    let url = sites[1].server.url().replace("redis://", "redis://reader:secret@");
    let replicator = Replicator::start(settings_of(&[sites[0].server.url(), &url], 0)).unwrap();
    let _peer = Replicator::start(settings(&sites, 1)).unwrap();
    wait_for_cursors(&mut sites).await;
    sites[1].charge(0, "ann", 3);
    soon("the charge arrives", async || sites[0].used_by(0, "ann") == 3).await;
    soon("the refusal is reported", async || {
        let error = status(&replicator, "us").error.map(|error| error.to_string());
        error.is_some_and(|error| error.contains("hset") && !error.contains("secret"))
    })
    .await;
    sites[1].server.cli(&["ACL", "SETUSER", "reader", "+hset"]).unwrap();
    soon("nothing is missing", async || status(&replicator, "us").error.is_none()).await;
    assert!(!status(&replicator, "us").is_cut_off);
}
