//! A real nginx with a cache in front of the layer. It keeps pages and no rejection.

use std::net::SocketAddr;

use axum::Router;
use axum::http::header::CACHE_CONTROL;
use axum::response::IntoResponse;
use axum::routing::get;
use http::{Method, StatusCode};
use reqwest::Client;
use tidegate::{Limiter, Quota};
use tidegate_http::{Key, RateLimitLayer};
use tidegate_testkit::Nginx;
use tokio::net::TcpListener;

use crate::support::fixture::HOUR;

/// Returns a layer with a limit of one request per key.
fn one_each() -> RateLimitLayer {
    let gate = Limiter::in_memory().gate("page", Quota::fixed_window(1, HOUR));
    RateLimitLayer::new(gate, Key::header("x-api-key"))
}

async fn serve(layer: RateLimitLayer) -> SocketAddr {
    let app = Router::new().route("/", get(|| async { "page" }).post(|| async { "page" })).layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// Starts an nginx that caches the service's responses by their method and path only.
async fn cache(service: SocketAddr, directives: &str) -> Nginx {
    let directives = format!(
        "{directives}
        location / {{
            proxy_pass http://{service};
            proxy_cache cache;
            proxy_cache_key $request_method$uri;
            add_header x-cache $upstream_cache_status always;
        }}"
    );
    tokio::task::spawn_blocking(move || Nginx::start(&directives).unwrap()).await.unwrap()
}

/// A response: status, how the cache found it, and body.
type Reply = (StatusCode, String, String);

async fn send(url: &str, method: Method, key: &str, headers: &[(&str, &str)]) -> Reply {
    let request = Client::new().request(method, url).header("x-api-key", key);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let reply = request.send().await.unwrap();
    let found = reply.headers().get("x-cache").map_or("", |value| value.to_str().unwrap()).to_owned();
    (reply.status(), found, reply.text().await.unwrap())
}

/// Uses up the limit of key `a`. Then sends its request through the cache, and returns the response. The next
/// client must get the page, and the cache must keep that page.
async fn rejected_then_served(directives: &str, method: Method, headers: &[(&str, &str)]) -> Reply {
    let service = serve(one_each()).await;
    let nginx = cache(service, directives).await;
    let direct = send(&format!("http://{service}/"), method.clone(), "a", headers).await;
    assert_eq!((direct.0, &*direct.2), (StatusCode::OK, "page"));
    let rejected = send(&nginx.url(), method.clone(), "a", headers).await;
    for (key, found) in [("b", "MISS"), ("b", "HIT"), ("a", "HIT")] {
        let reply = send(&nginx.url(), method.clone(), key, headers).await;
        assert_eq!(reply, (StatusCode::OK, found.to_owned(), "page".to_owned()), "{directives} {method}");
    }
    rejected
}

#[tokio::test]
async fn refusal_is_not_cached_by_a_proxy() {
    for directives in [
        "proxy_cache_valid 1h;",
        "proxy_cache_valid any 1h;",
        "proxy_cache_valid any 1h; proxy_cache_methods GET HEAD POST;",
    ] {
        let rejected = rejected_then_served(directives, Method::GET, &[]).await;
        assert_eq!((rejected.0, &*rejected.1), (StatusCode::TOO_MANY_REQUESTS, "MISS"), "{directives}");
    }
}

#[tokio::test]
async fn get_that_claims_to_be_grpc_is_not_cached_as_a_page() {
    let claim = [("content-type", "application/grpc")];
    let rejected = rejected_then_served("proxy_cache_valid any 1h;", Method::GET, &claim).await;
    assert_eq!((rejected.0, &*rejected.1), (StatusCode::TOO_MANY_REQUESTS, "MISS"));
}

#[tokio::test]
async fn grpc_refusal_is_not_cached_by_a_proxy_that_caches_post() {
    let directives = "proxy_cache_valid any 1h; proxy_cache_methods GET HEAD POST;";
    let claim = [("content-type", "application/grpc")];
    let rejected = rejected_then_served(directives, Method::POST, &claim).await;
    assert_eq!(rejected, (StatusCode::OK, "MISS".to_owned(), String::new()), "a gRPC status");
}

/// Returns how the cache finds a custom response the second time.
async fn second_custom_response(cache_control: Option<&'static str>) -> String {
    let layer = one_each().on_rejection(move |_, rejection| async move {
        let mut response = rejection.status().into_response();
        if let Some(value) = cache_control {
            response.headers_mut().insert(CACHE_CONTROL, value.parse().unwrap());
        }
        response
    });
    let service = serve(layer).await;
    let nginx = cache(service, "proxy_cache_valid any 1h;").await;
    send(&format!("http://{service}/"), Method::GET, "a", &[]).await;
    let first = send(&nginx.url(), Method::GET, "a", &[]).await;
    assert_eq!((first.0, &*first.1), (StatusCode::TOO_MANY_REQUESTS, "MISS"));
    send(&nginx.url(), Method::GET, "a", &[]).await.1
}

#[tokio::test]
async fn custom_response_is_cached_only_if_it_permits_it() {
    assert_eq!(second_custom_response(None).await, "MISS");
    assert_eq!(
        second_custom_response(Some("max-age=60")).await,
        "HIT",
        "nginx caches a 429 without no-store"
    );
}
