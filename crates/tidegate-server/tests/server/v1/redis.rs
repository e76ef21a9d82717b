//! The API over Redis: shared counts, and failures.

use std::time::{Duration, Instant};

use serde_json::json;
use tidegate::{OnFailure, Quota, Rate};
use tidegate_testkit::Server;

use super::fixture::{RULES, by_gate, by_rules, post};
use crate::server::fixture::{Running, on};
use crate::support::fixture::{builder, builder_as_is, namespace, soon};

#[tokio::test]
async fn instances_and_linked_services_share_counts() {
    let redis = tidegate_testkit::shared();
    let name = namespace();
    let limiter = || builder(redis.url()).namespace(&name).build().unwrap();
    let linked = limiter();
    let start = async || Running::start(on(RULES, &limiter())).await;
    let (one, two) = (start().await, start().await);
    let gate = linked.gate("mail", Quota::token_bucket(3, Rate::new(3, Duration::from_secs(86_400))));
    let quota = json!({ "algorithm": "token_bucket", "requests_per_unit": 3, "unit": "day" });
    let request = json!({ "gate": "mail", "key": "ada", "quota": quota });
    let first = post(&one, "check", &request).await;
    assert_eq!(
        (&first.body["decision"]["remaining"], &first.body["decision"]["source"]),
        (&json!(2), &json!("redis"))
    );
    assert_eq!(post(&two, "check", &request).await.body["decision"]["remaining"], 1);
    assert_eq!(gate.check("ada").await.unwrap().remaining(), 0);
    assert_eq!(post(&one, "check", &request).await.status, 429);
    // A gate of the rules and its descriptors are one count, at both instances.
    assert_eq!(post(&one, "check", &by_gate("d.user", "ada")).await.status, 200);
    assert_eq!(post(&two, "check", &by_rules("user", "ada")).await.body["decision"]["remaining"], 0);
    assert!(one.stop().await && two.stop().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failure_policy_decides_while_redis_is_killed() {
    let mut redis = Server::process(&[]).unwrap();
    let deadline = Duration::from_secs(1);
    let mut servers = Vec::new();
    for (policy, status, source) in [
        (OnFailure::Local, 200, Some("local")),
        (OnFailure::Open, 200, Some("open")),
        (OnFailure::Closed, 429, Some("closed")),
        (OnFailure::Error, 503, None),
    ] {
        let settings = builder_as_is(redis.url()).on_failure(policy).instances(1).deadline(deadline);
        let server = Running::start(on(RULES, &settings.build().unwrap())).await;
        // Redis decides before, also on a loaded machine.
        soon("decided by Redis", async || {
            post(&server, "peek", &by_gate("d.user", "ada")).await.body["decision"]["source"] == "redis"
        })
        .await;
        servers.push((server, status, source));
    }
    redis.kill();
    for (server, status, source) in servers {
        for (endpoint, body) in [
            ("check", by_gate("d.user", "ada")),
            ("check", by_rules("user", "bob")),
            ("check_all", json!({ "checks": [by_gate("d.user", "cid"), by_gate("d.plan", "cid")] })),
            ("reserve", json!({ "checks": [by_gate("d.user", "dan")] })),
            ("acquire", by_rules("held", "eve")),
        ] {
            let asked = Instant::now();
            let reply = post(&server, endpoint, &body).await;
            assert!(asked.elapsed() < deadline + Duration::from_secs(5), "{:?}", asked.elapsed());
            assert_eq!(reply.status, status, "{endpoint} {body}: {reply:?}");
            match source {
                Some(source) => assert_eq!(reply.body["decision"]["source"], source, "{endpoint}"),
                None => {
                    assert_eq!(reply.problem(), "redis-unavailable", "{endpoint}");
                    assert_eq!(reply.headers["retry-after"], "1");
                }
            }
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn settle_and_release_go_on_in_the_background_while_redis_is_paused() {
    let redis = Server::process(&[]).unwrap();
    let limiter = || builder_as_is(redis.url()).namespace("shared").deadline(Duration::from_secs(1));
    let server = Running::start(on(RULES, &limiter().build().unwrap())).await;
    let checks = json!({ "checks": [by_gate("d.user", "ada")] });
    let reserved = post(&server, "reserve", &checks).await;
    let acquired = post(&server, "acquire", &by_rules("held", "ada")).await;
    assert_eq!((reserved.status, acquired.status), (200, 200), "{reserved:?} {acquired:?}");
    let paused = redis.pause().unwrap();
    let token = &reserved.body["reservation"]["token"];
    let cancelled = post(&server, "cancel", &json!({ "token": token })).await;
    assert_eq!((cancelled.status, &cancelled.body["settlements"]), (200, &json!(["queued"])));
    let released = post(&server, "release", &json!({ "permit": acquired.body["permit"]["id"] })).await;
    assert_eq!((released.status, &released.body), (200, &json!({ "confirmed": false })));
    drop(paused);
    soon("settled and released", async || {
        let settled = post(&server, "peek", &by_gate("d.user", "ada")).await;
        let free = post(&server, "peek", &by_rules("held", "ada")).await;
        settled.body["decision"]["remaining"] == 2 && free.body["decision"]["remaining"] == 1
    })
    .await;
    assert!(server.stop().await);
}

#[tokio::test]
async fn data_of_another_program_is_a_problem_of_the_server() {
    let redis = tidegate_testkit::shared();
    let limiter = builder(redis.url()).build().unwrap();
    let server = Running::start(on(RULES, &limiter)).await;
    let gate = limiter.gate("mail", Quota::token_bucket(3, Rate::new(3, Duration::from_secs(86_400))));
    let key = gate.redis_key("ada").unwrap();
    redis.cli(&["RPUSH", &key, "x"]).unwrap();
    let quota = json!({ "algorithm": "token_bucket", "requests_per_unit": 3, "unit": "day" });
    let reply = post(&server, "check", &json!({ "gate": "mail", "key": "ada", "quota": quota })).await;
    assert_eq!((reply.status, reply.problem(), &reply.body["gate"]), (500, "corrupt-state", &json!("mail")));
    assert!(!reply.detail().contains("ada"), "a whole key is not shown: {reply:?}");
    assert!(server.stop().await);
}
