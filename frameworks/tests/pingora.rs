//! The proxy, in front of a service.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tidegate_testkit::Server;

use crate::client::{Connection, Reply, get};
use crate::process::Example;
use crate::upstream::{HeldUpstream, Upstream};
use crate::{BALANCER, CLIENT};

fn proxy(redis: &Server, upstream: &str) -> Example {
    Example::start_with("pingora", redis.url(), &[("UPSTREAM", upstream), ("PROXIES", "127.0.0.9")])
}

/// Uses up the limit of `CLIENT`.
async fn exhaust(proxy: &Example) {
    for _ in 0..10 {
        assert_eq!(get(proxy.address, CLIENT, "/", &[]).await.status, 200);
    }
}

/// Returns the units left that these responses report, sorted.
fn units_left(admitted: &[&Reply]) -> Vec<u64> {
    let remaining = |reply: &&Reply| reply.header("x-ratelimit-remaining").unwrap().parse().unwrap();
    let mut units: Vec<u64> = admitted.iter().map(remaining).collect();
    units.sort_unstable();
    units
}

/// Asserts that a request was rejected with all headers, and a problem as the layer of `tidegate-http` sends it.
fn assert_rejected(reply: &Reply) {
    assert_eq!((reply.status, reply.header("x-upstream")), (429, None), "{reply:?}");
    let wait = reply.header("retry-after").unwrap();
    assert!((3_590..=3_600).contains(&wait.parse().unwrap()), "{reply:?}");
    assert_eq!(reply.header("ratelimit-policy"), Some("\"api\";q=10;w=3600"));
    assert_eq!(reply.header("ratelimit"), Some(&*format!("\"api\";r=0;t={wait}")));
    assert_eq!(reply.header("x-ratelimit-limit"), Some("10"));
    assert_eq!(reply.header("x-ratelimit-remaining"), Some("0"));
    assert_eq!(reply.header("x-ratelimit-reset"), Some(wait));
    assert_eq!(reply.header("cache-control"), Some("no-store"));
    assert_eq!(reply.header("content-type"), Some("application/problem+json"));
    assert!(reply.body.contains("\"violated-policies\":[\"api\"]"), "{reply:?}");
}

#[tokio::test]
async fn proxy_admits_the_limit_and_rejects_the_rest_without_calling_the_upstream() {
    let (redis, upstream) = (Server::process(&[]).unwrap(), Upstream::start().await);
    let proxy = proxy(&redis, &upstream.address.to_string());
    for remaining in (0..10).rev() {
        let admitted = get(proxy.address, CLIENT, "/", &[]).await;
        assert_eq!((admitted.status, &*admitted.body), (200, "upstream\n"), "{admitted:?}");
        assert_eq!(admitted.header("x-upstream"), Some("yes"));
        assert_eq!(admitted.header("x-ratelimit-remaining"), Some(&*remaining.to_string()));
        assert!(admitted.header("ratelimit").unwrap().starts_with(&format!("\"api\";r={remaining};t=")));
        assert_eq!(admitted.header("retry-after"), None);
    }
    assert_rejected(&get(proxy.address, CLIENT, "/", &[]).await);
    let text = get(proxy.address, CLIENT, "/", &[("accept", "text/plain")]).await;
    assert_eq!((text.status, text.header("content-type")), (429, Some("text/plain; charset=utf-8")));
    assert_eq!(upstream.calls(), 10);
    assert_eq!(get(proxy.address, [127, 0, 0, 2], "/", &[]).await.status, 200, "another address");
}

#[tokio::test]
async fn proxy_reads_forwarded_addresses_of_declared_balancers_only() {
    let (redis, upstream) = (Server::process(&[]).unwrap(), Upstream::start().await);
    let proxy = proxy(&redis, &upstream.address.to_string());
    let remaining = async |from: [u8; 4], forwarded: &str| {
        let reply = get(proxy.address, from, "/", &[("x-forwarded-for", forwarded)]).await;
        reply.header("x-ratelimit-remaining").unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(remaining(BALANCER, "203.0.113.7").await, 9);
    assert_eq!(
        remaining(BALANCER, "198.51.100.1, 203.0.113.7").await,
        8,
        "the balancer wrote the last entry"
    );
    assert_eq!(remaining(BALANCER, "203.0.113.8").await, 9);
    assert_eq!(remaining(CLIENT, "203.0.113.7").await, 9, "the client's own address counts");
    assert_eq!(remaining(CLIENT, "203.0.113.9").await, 8);
}

#[tokio::test]
async fn proxy_does_not_charge_for_errors_of_the_upstream() {
    let (redis, upstream) = (Server::process(&[]).unwrap(), Upstream::start().await);
    let proxy_of_service = proxy(&redis, &upstream.address.to_string());
    for _ in 0..12 {
        let failed = get(proxy_of_service.address, CLIENT, "/fail", &[]).await;
        assert_eq!((failed.status, failed.header("x-ratelimit-remaining")), (500, Some("10")));
    }
    let nobody_listens = proxy(&redis, "127.0.0.1:1");
    for _ in 0..12 {
        assert_eq!(get(nobody_listens.address, CLIENT, "/", &[]).await.status, 502);
    }
    // The last refund follows its response.
    let began = Instant::now();
    while get(proxy_of_service.address, CLIENT, "/fail", &[]).await.header("x-ratelimit-remaining")
        != Some("10")
    {
        assert!(began.elapsed() < Duration::from_secs(20), "a failed request stays charged");
    }
}

#[tokio::test]
async fn proxies_share_one_limit_exactly() {
    let (redis, upstream) = (Server::process(&[]).unwrap(), Upstream::start().await);
    let proxies = [(); 2].map(|()| proxy(&redis, &upstream.address.to_string()));
    // Connects each proxy to Redis, so that the requests below do not share their deadlines with that.
    for proxy in &proxies {
        assert_eq!(get(proxy.address, [127, 0, 0, 2], "/", &[]).await.status, 200);
    }
    let replies = join_all((0..60).map(|at| get(proxies[at % 2].address, CLIENT, "/", &[]))).await;
    let (admitted, rejected): (Vec<_>, Vec<_>) = replies.iter().partition(|reply| reply.status == 200);
    assert_eq!(units_left(&admitted), (0..10).collect::<Vec<_>>());
    rejected.into_iter().for_each(assert_rejected);
    assert_eq!(upstream.calls(), 12);
}

#[tokio::test]
async fn proxy_decides_within_its_share_while_redis_is_paused() {
    let (redis, upstream) = (Server::process(&[]).unwrap(), Upstream::start().await);
    let proxy = proxy(&redis, &upstream.address.to_string());
    assert_eq!(get(proxy.address, [127, 0, 0, 2], "/", &[]).await.status, 200);
    let paused = redis.pause().unwrap();
    // One process: its share is the whole limit.
    let admitted = join_all((0..10).map(|_| get(proxy.address, CLIENT, "/", &[]))).await;
    assert_eq!(units_left(&admitted.iter().collect::<Vec<_>>()), (0..10).collect::<Vec<_>>());
    assert_rejected(&get(proxy.address, CLIENT, "/", &[]).await);
    drop(paused);
}

#[tokio::test]
async fn proxy_keeps_the_connection_of_a_rejected_request_without_a_body() {
    let (redis, upstream) = (Server::process(&[]).unwrap(), Upstream::start().await);
    let proxy = proxy(&redis, &upstream.address.to_string());
    exhaust(&proxy).await;
    let mut connection = Connection::open(proxy.address, CLIENT).await;
    connection.send("HEAD / HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let head = Reply::parse(&connection.read_until("\r\n\r\n").await);
    assert_eq!((head.status, head.header("x-ratelimit-remaining")), (429, Some("0")), "{head:?}");
    assert_ne!(head.header("content-length"), Some("0"));
    connection.send("GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert_rejected(&connection.read_to_end().await);
}

#[tokio::test]
async fn proxy_closes_the_connection_of_a_rejected_request_with_a_body() {
    let (redis, upstream) = (Server::process(&[]).unwrap(), Upstream::start().await);
    let proxy = proxy(&redis, &upstream.address.to_string());
    exhaust(&proxy).await;
    for body in [
        "content-length: 5\r\n\r\nhello",
        "content-length: 1000000\r\n\r\nthe rest follows never",
        "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "content-length: 5\r\nexpect: 100-continue\r\n\r\n",
    ] {
        let mut connection = Connection::open(proxy.address, CLIENT).await;
        connection.send(&format!("POST / HTTP/1.1\r\nhost: x\r\n{body}")).await;
        let reply = connection.read_to_end().await;
        assert_rejected(&reply);
        assert_eq!(reply.header("connection"), Some("close"));
    }
    assert_eq!(upstream.calls(), 10);
}

#[tokio::test]
async fn proxy_passes_on_the_reason_phrase_and_the_case_of_header_names() {
    let (redis, upstream) = (Server::process(&[]).unwrap(), Upstream::start().await);
    let proxy = proxy(&redis, &upstream.address.to_string());
    let reply = get(proxy.address, CLIENT, "/", &[]).await;
    assert!(reply.head.starts_with("HTTP/1.1 200 Well done\r\n"), "{reply:?}");
    assert!(reply.head.contains("\r\nX-Upstream: yes\r\n"), "{reply:?}");
}

#[tokio::test]
async fn permit_of_an_in_flight_limit_is_held_until_the_response_is_sent() {
    let (redis, upstream) = (Server::process(&[]).unwrap(), HeldUpstream::start().await);
    let address = upstream.address.to_string();
    let variables = [("UPSTREAM", &*address), ("PROXIES", ""), ("CONCURRENT", "1")];
    let proxy = Example::start_with("pingora", redis.url(), &variables);
    let mut first = Connection::open(proxy.address, CLIENT).await;
    first.send("GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    first.read_until("\r\n\r\n.").await;
    let denied = get(proxy.address, CLIENT, "/", &[]).await;
    assert_eq!(denied.status, 429, "{denied:?}");
    assert!(denied.body.contains("\"violated-policies\":[\"concurrent\"]"), "{denied:?}");
    upstream.finish();
    first.read_until("end").await;
    // The release follows the response.
    let began = Instant::now();
    while get(proxy.address, CLIENT, "/", &[]).await.status != 200 {
        assert!(began.elapsed() < Duration::from_secs(20), "the permit is not released");
    }
}
