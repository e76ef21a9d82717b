//! Releases of permits that another server holds.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate::OnFailure;
use tidegate_testkit::Server;
use tokio::join;
use tokio::time::sleep;

use super::fixture::{RULES, Reply, by_rules, post};
use super::in_flight::{exports, permit};
use crate::server::fixture::{Running, on};
use crate::support::fixture::{builder, builder_as_is, namespace, soon};

/// Servers of one namespace.
struct Fleet<'r> {
    redis: &'r Server,
    namespace: String,
}

impl<'r> Fleet<'r> {
    fn new(redis: &'r Server) -> Self {
        Self { redis, namespace: namespace() }
    }

    async fn start(&self) -> Running {
        Running::start(on(RULES, &builder(self.redis.url()).namespace(&self.namespace).build().unwrap()))
            .await
    }

    /// Returns the key of the releases that wait for the server of this permit.
    fn inbox(&self, acquired: &Reply) -> String {
        format!("{}:1:releases/{}", self.namespace, &id(acquired)[..8])
    }

    /// Waits until the server of this permit has processed the releases that were recorded.
    async fn processed(&self, acquired: &Reply) {
        let inbox = self.inbox(acquired);
        soon("processed", async || {
            // The program that asks Redis blocks the runtime of the servers.
            sleep(Duration::from_millis(50)).await;
            self.redis.cli(&["ZCARD", &inbox]).unwrap() == "(integer) 1"
        })
        .await;
    }
}

fn id(acquired: &Reply) -> &str {
    acquired.body["permit"]["id"].as_str().unwrap()
}

async fn acquires(server: &Running, request: &Value) -> bool {
    post(server, "acquire", request).await.status == 200
}

fn assert_recorded(released: &Reply) {
    assert_eq!((released.status, &released.body), (200, &json!({ "confirmed": false })), "{released:?}");
}

fn assert_unknown(released: &Reply) {
    assert_eq!((released.status, released.problem()), (404, "unknown-permit"), "{released:?}");
}

#[tokio::test]
async fn any_server_receives_the_release_of_a_permit() {
    let redis = tidegate_testkit::shared();
    let fleet = Fleet::new(&redis);
    let (one, two) = (fleet.start().await, fleet.start().await);
    for request in [exports(1, 600_000), by_rules("held", "ada")] {
        let acquired = post(&one, "acquire", &request).await;
        assert!(!acquires(&two, &request).await);
        assert_recorded(&post(&two, "release", &permit(&acquired)).await);
        soon("released", async || acquires(&two, &request).await).await;
        assert_unknown(&post(&one, "release", &permit(&acquired)).await);
        assert_recorded(&post(&two, "release", &permit(&acquired)).await);
        fleet.processed(&acquired).await;
        assert!(!acquires(&one, &request).await, "a repeated release frees no other permit");
    }
    assert!(one.stop().await && two.stop().await);
}

#[tokio::test]
async fn two_releases_at_two_servers_free_one_permit() {
    let redis = tidegate_testkit::shared();
    let fleet = Fleet::new(&redis);
    let (one, two, three) = (fleet.start().await, fleet.start().await, fleet.start().await);
    let request = exports(2, 600_000);
    let acquired = post(&one, "acquire", &request).await;
    assert!(acquires(&one, &request).await);
    let release = permit(&acquired);
    let (first, second) = join!(post(&two, "release", &release), post(&three, "release", &release));
    assert_recorded(&first);
    assert_recorded(&second);
    fleet.processed(&acquired).await;
    soon("released", async || acquires(&two, &request).await).await;
    assert!(!acquires(&three, &request).await);
    for server in [one, two, three] {
        assert!(server.stop().await);
    }
}

#[tokio::test]
async fn forged_release_frees_nothing_and_leaves_nothing_in_redis() {
    let redis = tidegate_testkit::shared();
    let fleet = Fleet::new(&redis);
    let (one, two) = (fleet.start().await, fleet.start().await);
    let request = exports(1, 600_000);
    let acquired = post(&one, "acquire", &request).await;
    let (server, secret) = id(&acquired).split_at(8);
    let other = if server == "00000000" { "00000001" } else { "00000000" };
    for forged in [format!("{other}{secret}"), format!("{other}{}", "0".repeat(32))] {
        assert_unknown(&post(&two, "release", &json!({ "permit": forged })).await);
    }
    let forged = json!({ "permit": format!("{server}{}", "0".repeat(32)) });
    assert_unknown(&post(&one, "release", &forged).await);
    assert_recorded(&post(&two, "release", &forged).await);
    fleet.processed(&acquired).await;
    assert!(!acquires(&two, &request).await);
    let inboxes = redis.cli(&["KEYS", &format!("{}:1:releases/*", fleet.namespace)]).unwrap();
    assert_eq!(inboxes, format!("1) \"{}\"", fleet.inbox(&acquired)), "forged ids make no key");
    assert!(one.stop().await && two.stop().await);
}

#[tokio::test]
async fn inbox_that_redis_lost_opens_again() {
    let redis = tidegate_testkit::shared();
    let fleet = Fleet::new(&redis);
    let (one, two) = (fleet.start().await, fleet.start().await);
    let request = exports(1, 600_000);
    let acquired = post(&one, "acquire", &request).await;
    redis.cli(&["DEL", &fleet.inbox(&acquired)]).unwrap();
    soon("recorded", async || post(&two, "release", &permit(&acquired)).await.status == 200).await;
    soon("released", async || acquires(&two, &request).await).await;
    assert!(one.stop().await && two.stop().await);
}

#[tokio::test]
async fn release_at_another_server_is_repeated_after_an_outage_of_redis() {
    let redis = Server::process(&[]).unwrap();
    let settings = || {
        let settings = builder_as_is(redis.url()).namespace("shared").deadline(Duration::from_secs(1));
        settings.on_failure(OnFailure::Local).instances(1).build().unwrap()
    };
    let start = async || Running::start(on(RULES, &settings())).await;
    let (one, two) = (start().await, start().await);
    let decided_by_redis = async |server: &Running| {
        post(server, "peek", &by_rules("user", "ada")).await.body["decision"]["source"] == "redis"
    };
    let request = exports(1, 600_000);
    soon("decided by Redis", async || decided_by_redis(&one).await && decided_by_redis(&two).await).await;
    let before = post(&one, "acquire", &request).await;
    let paused = redis.pause().unwrap();
    let refused = post(&two, "release", &permit(&before)).await;
    assert_eq!((refused.status, refused.problem()), (503, "redis-unavailable"));
    assert_eq!(refused.headers["retry-after"], "1");
    // The failure policy admits it, and Redis does not know its server yet.
    let three = start().await;
    let meanwhile = post(&three, "acquire", &by_rules("held", "ada")).await;
    assert_eq!((meanwhile.status, &meanwhile.body["decision"]["source"]), (200, &json!("local")));
    drop(paused);
    soon("decided by Redis", async || decided_by_redis(&one).await && decided_by_redis(&two).await).await;
    for (request, acquired) in [(request, before), (by_rules("held", "ada"), meanwhile)] {
        soon("recorded", async || post(&two, "release", &permit(&acquired)).await.status == 200).await;
        soon("released", async || acquires(&two, &request).await).await;
        assert!(!acquires(&one, &request).await, "Redis counts the new permit");
    }
    for server in [one, two, three] {
        assert!(server.stop().await);
    }
}
