//! Rankings of all keys of a real Redis, refreshed while reads fail.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use tidegate::admin::top_keys::TopKeys;
use tidegate::admin::{Inspector, Ranking};
use tidegate::{Gate, Quota};
use tidegate_testkit::Server;

use crate::support::fixture::{HOUR, builder, builder_as_is};

const USER: &str = "reader";
const PASSWORD: &str = "PASSWORD";

/// Sets whether the user may read the states of the namespace `seen`. Without, it can still find the nodes, and SCAN lists
/// all names.
fn let_read(server: &Server, may_read: bool) {
    let states = if may_read { "~seen:*" } else { "~seen:*{*" };
    let password = format!(">{PASSWORD}");
    let line = ["ACL", "SETUSER", USER, "reset", "on", &password, "+@all", states];
    assert_eq!(server.cli(&line).unwrap(), "OK");
}

/// Returns rankings, by a user whose rights can change, and a gate.
fn top_keys(server: &Server) -> (TopKeys, Gate) {
    let limiter = builder_as_is(server.url()).credentials(USER, PASSWORD).namespace("seen").build().unwrap();
    let blocked =
        Ranking::by(5, |found| found.usage.as_ref().ok()?.blocked_for.map(|left| left.as_secs_f64()));
    let top = TopKeys::new(Inspector::new(&limiter).unwrap(), None, vec![blocked]);
    let gate = builder(server.url()).namespace("seen").build().unwrap();
    (top, gate.gate("login", Quota::fixed_window(1, HOUR)))
}

fn blocked(top: &TopKeys) -> usize {
    top.rankings()[0].best().len()
}

#[tokio::test]
async fn round_whose_states_could_not_be_read_is_not_complete() {
    let server = Server::process(&[]).unwrap();
    let_read(&server, true);
    let (mut top, gate) = top_keys(&server);
    let _ = gate.check("ada").await.unwrap();
    gate.block("eve", HOUR).await.unwrap();
    top.refresh().await.unwrap();
    while top.last_round().is_none() {
        top.refresh().await.unwrap();
    }
    assert_eq!((top.last_round(), blocked(&top)), (Some(2), 1));

    gate.reset("eve").await.unwrap();
    top.refresh().await.unwrap();
    assert_eq!((top.last_round(), blocked(&top)), (Some(1), 0));
    let_read(&server, false);
    gate.block("eve", HOUR).await.unwrap();
    for _ in 0..3 {
        top.refresh().await.unwrap_err();
        assert_eq!(top.last_round(), None);
    }
    let_read(&server, true);
    top.refresh().await.unwrap();
    assert_eq!((top.last_round(), blocked(&top)), (Some(2), 1));
}

/// Polls a refresh at most this often, and then drops it.
async fn refresh_in_part(top: &mut TopKeys, mut polls: usize) {
    let mut refresh = pin!(top.refresh());
    let polled = poll_fn(|context| {
        polls -= 1;
        match refresh.as_mut().poll(context) {
            Poll::Pending if polls > 0 => Poll::Pending,
            _ => Poll::Ready(()),
        }
    });
    polled.await;
}

#[tokio::test]
async fn complete_round_has_every_key_wherever_an_earlier_refresh_was_dropped() {
    let server = Server::process(&[]).unwrap();
    let_read(&server, true);
    for polls in 1..40 {
        // A key that is ranked already would be read again.
        let (mut top, gate) = top_keys(&server);
        gate.block("eve", HOUR).await.unwrap();
        refresh_in_part(&mut top, polls).await;
        top.refresh().await.unwrap();
        assert_eq!((top.last_round(), blocked(&top)), (Some(1), 1), "{polls} polls");
    }
}
