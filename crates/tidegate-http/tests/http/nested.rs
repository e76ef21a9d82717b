//! Limits by path in and around nested routers of axum.

use std::convert::Infallible;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::routing::any;
use http::{Response, StatusCode};
use tidegate::{Limiter, Quota};
use tidegate_http::{Key, RateLimitLayer};
use tidegate_rules::Rules;
use tower::{Layer, ServiceExt, service_fn};

use crate::support::fixture::HOUR;

const LOGIN: &str = "
domain: api
rate_limits:
  - actions: [{ path: {} }]
descriptors:
  - { key: path, value: /v1/login, rate_limit: { unit: hour, requests_per_unit: 1 } }
";

/// Spellings of one path that axum routes to the service nested at `/v1`.
const SPELLINGS: [&str; 5] = ["/v1/login", "/v1//login", "/v1/./login", "/v1/x/..//login?a=b", "/v1/%6Cogin"];

/// Returns apps with the layer in a nested router, around a nested service, and around the router of one.
fn apps(layer: impl Fn() -> RateLimitLayer) -> [(&'static str, Router); 3] {
    let login = || service_fn(|_: Request| async { Ok::<_, Infallible>(Response::new(Body::empty())) });
    let users = Router::new().route("/{*rest}", any(|| async {})).layer(layer());
    [
        ("nest", Router::new().nest("/v1", users)),
        ("nest_service", Router::new().nest_service("/v1", layer().layer(login()))),
        ("around nest_service", Router::new().nest_service("/v1", login()).layer(layer())),
    ]
}

async fn status(app: &Router, target: &str) -> StatusCode {
    let request = Request::get(target).body(Body::empty()).unwrap();
    app.clone().oneshot(request).await.unwrap().status()
}

#[tokio::test]
async fn each_spelling_of_a_nested_path_meets_its_rule() {
    for first in SPELLINGS {
        let layer = || {
            let rules = Rules::parse("api.yaml", LOGIN).unwrap();
            RateLimitLayer::with_rules(rules.bind(&Limiter::in_memory()), "api").unwrap()
        };
        for (name, app) in apps(layer) {
            assert_eq!(status(&app, first).await, StatusCode::OK, "{name}: {first}");
            for again in SPELLINGS {
                let denied = status(&app, again).await;
                assert_eq!(denied, StatusCode::TOO_MANY_REQUESTS, "{name}: {again} after {first}");
            }
            assert_eq!(status(&app, "/v1/logout").await, StatusCode::OK, "{name}");
        }
    }
}

#[tokio::test]
async fn each_spelling_of_a_nested_path_is_one_key_with_the_prefix() {
    let gate = Limiter::in_memory().gate("login", Quota::fixed_window(100, HOUR));
    for (name, app) in apps(|| RateLimitLayer::new(gate.clone(), Key::path())) {
        for target in SPELLINGS {
            assert_eq!(status(&app, target).await, StatusCode::OK, "{name}: {target}");
        }
        assert_eq!(gate.peek("/v1/login").await.unwrap().remaining(), 95, "{name}");
        gate.reset("/v1/login").await.unwrap();
    }
}

#[tokio::test]
async fn path_template_is_a_key_in_a_nested_router_and_none_behind_nest_service() {
    let gate = Limiter::in_memory().gate("login", Quota::fixed_window(100, HOUR));
    for (name, app) in apps(|| RateLimitLayer::new(gate.clone(), Key::path_template())) {
        let expected = if name == "nest" { StatusCode::OK } else { StatusCode::BAD_REQUEST };
        assert_eq!(status(&app, "/v1//login").await, expected, "{name}");
    }
    assert_eq!(gate.peek("/v1/{*rest}").await.unwrap().remaining(), 99);
}
