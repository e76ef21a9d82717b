//! Mistakes in the setup of a service: each is a warning with a stable code.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::routing::get;
use axum::{Extension, Router};
use http::{Method, Request, StatusCode};
use tidegate::{Event, Limiter, ManualClock, Observer, Quota, Warning};
use tidegate_http::{ClientIp, GateRule, Key, MissingKey, OnError, PeerAddr, RateLimitLayer, Reason};
use tidegate_rules::Rules;
use tower::{Layer, ServiceExt};

use super::fixture::{Tested, by_key, request, three_a_minute};

const HOUR: Duration = Duration::from_secs(3_600);

/// The warnings of one limiter.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<Warning>>>);

impl Observer for Warnings {
    fn on(&self, event: &Event<'_>) {
        if let Event::Warned(warning) = *event {
            self.0.lock().unwrap().push(warning.clone());
        }
    }

    fn reports_warnings(&self) -> bool {
        true
    }
}

impl Warnings {
    /// Returns the codes that were reported since the last call.
    fn codes(&self) -> Vec<&'static str> {
        self.take().iter().map(Warning::code).collect()
    }

    fn take(&self) -> Vec<Warning> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

fn observed() -> (Limiter, Warnings, ManualClock) {
    let (warnings, clock) = (Warnings::default(), ManualClock::new());
    let builder = Limiter::builder().in_memory().manual_clock(clock.clone());
    (builder.observer(warnings.clone()).build().unwrap(), warnings, clock)
}

/// Returns a layer with a gate of its own that limits nothing in these tests.
fn layer(limiter: &Limiter, key: Key) -> RateLimitLayer {
    RateLimitLayer::new(limiter.gate("api", Quota::fixed_window(1_000, HOUR)), key)
}

fn app(layer: RateLimitLayer) -> Router {
    Router::new().route("/", get(|| async { "hello" })).layer(layer)
}

async fn status(app: &Router, request: Request<Body>) -> StatusCode {
    app.clone().oneshot(request).await.unwrap().status()
}

fn from_peer(peer: &str, headers: &[(&'static str, &str)]) -> Request<String> {
    let mut request = Request::new(String::new());
    request.extensions_mut().insert(PeerAddr(SocketAddr::new(peer.parse().unwrap(), 4711)));
    for (name, value) in headers {
        request.headers_mut().append(*name, value.parse().unwrap());
    }
    request
}

fn by_address() -> Key {
    Key::client_ip(ClientIp::peer())
}

#[tokio::test]
async fn missing_peer_address_is_a_500_that_names_the_fix() {
    let (limiter, warnings, _) = observed();
    let without = app(layer(&limiter, by_address()));
    let response = without.clone().oneshot(Request::new(Body::empty())).await.unwrap();
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(response.headers().get("retry-after"), None, "a retry does not help");
    assert_eq!(
        warnings.take()[0].to_string(),
        "a request has no peer address, so clients cannot be told apart: serve axum with \
         `into_make_service_with_connect_info::<SocketAddr>()`, or insert a `tidegate_http::PeerAddr` before \
         this layer [peer-address-missing]"
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let set_up = without.into_make_service_with_connect_info::<SocketAddr>();
    let server = tokio::spawn(axum::serve(listener, set_up).into_future());
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    assert_eq!(client.get(url).send().await.unwrap().status(), 200);
    assert_eq!(warnings.codes(), [""; 0]);
    server.abort();
}

#[tokio::test]
async fn first_mistake_is_reported_at_once_and_later_ones_once_a_second_with_their_number() {
    let (limiter, warnings, clock) = observed();
    let tested = Tested::new(layer(&limiter, by_address()).missing_key(MissingKey::Share));
    for _ in 0..10 {
        tested.get("a").await;
    }
    assert_eq!(warnings.take().iter().map(Warning::occurrences).collect::<Vec<_>>(), [1]);
    clock.advance(Duration::from_secs(1));
    tested.get("a").await;
    assert_eq!(warnings.take().iter().map(Warning::occurrences).collect::<Vec<_>>(), [10]);
}

#[tokio::test]
async fn extension_of_a_layer_in_the_wrong_order_is_a_500_that_names_the_extension() {
    #[derive(Clone)]
    struct User(u64);
    let (limiter, warnings, _) = observed();
    let by_user = || layer(&limiter, Key::extension(|user: &User| user.0));
    let wrong = Router::new().route("/", get(|| async {})).layer(Extension(User(7))).layer(by_user());
    assert_eq!(status(&wrong, Request::new(Body::empty())).await, StatusCode::INTERNAL_SERVER_ERROR);
    let warning = warnings.take().remove(0);
    assert_eq!(warning.code(), "extension-missing");
    assert!(warning.message().contains("::User`"), "{warning}");
    let right = Router::new().route("/", get(|| async {})).layer(by_user()).layer(Extension(User(7)));
    assert_eq!(status(&right, Request::new(Body::empty())).await, StatusCode::OK);
    assert_eq!(warnings.codes(), [""; 0]);
}

#[tokio::test]
async fn extension_that_some_requests_lack_on_purpose_is_no_mistake() {
    #[derive(Clone)]
    struct User(u64);
    let (limiter, warnings, clock) = observed();
    let key = Key::all([Key::constant("user"), Key::extension(|user: &User| user.0)]);
    let tested = Tested::new(layer(&limiter, key).missing_key(MissingKey::Share));
    assert_eq!(tested.get("a").await.status, StatusCode::OK);
    assert_eq!(warnings.codes(), ["extension-missing"], "no request has had it so far");
    let mut known = request("a");
    known.extensions_mut().insert(User(7));
    tested.send(known).await;
    clock.advance(Duration::from_secs(10));
    assert_eq!(tested.get("a").await.status, StatusCode::OK);
    assert_eq!(warnings.codes(), [""; 0]);
}

#[tokio::test]
async fn header_that_a_client_has_not_sent_is_a_400_without_a_warning() {
    let (limiter, warnings, _) = observed();
    let app = app(layer(&limiter, by_key()));
    assert_eq!(status(&app, Request::new(Body::empty())).await, StatusCode::BAD_REQUEST);
    let template = self::app(layer(&limiter, Key::path_template()));
    let unknown = Request::get("/unknown").body(Body::empty()).unwrap();
    assert_eq!(status(&template, unknown).await, StatusCode::BAD_REQUEST);
    assert_eq!(warnings.codes(), [""; 0]);
}

#[tokio::test]
async fn forwarding_header_of_an_undeclared_private_peer_is_a_warning() {
    let forwarded = |name| (name, "198.51.100.9");
    for (trusted, peer, headers, is_mistake) in [
        (&[][..], "10.0.0.1", &[forwarded("x-forwarded-for")][..], true),
        (&[], "172.17.0.1", &[forwarded("forwarded")], true),
        (&[], "127.0.0.1", &[forwarded("x-real-ip")], true),
        (&[], "::ffff:192.168.0.1", &[forwarded("x-real-ip")], true),
        (&[], "100.64.0.1", &[forwarded("x-real-ip")], true),
        (&[], "fd00::1", &[forwarded("x-forwarded-for")], true),
        (&["10.0.0.0/8"], "172.17.0.1", &[forwarded("x-forwarded-for")], true),
        (&["10.0.0.0/8"], "10.0.0.1", &[forwarded("x-forwarded-for")], false),
        (&[], "10.0.0.1", &[], false),
        (&[], "203.0.113.7", &[forwarded("x-forwarded-for")], false),
        (&[], "2001:db8::1", &[forwarded("x-forwarded-for")], false),
    ] {
        let (limiter, warnings, _) = observed();
        let key = Key::all([by_key(), Key::client_ip(ClientIp::behind(trusted).unwrap())]);
        let tested = Tested::new(layer(&limiter, key));
        let mut request = from_peer(peer, headers);
        request.headers_mut().insert("x-api-key", "k-secret".parse().unwrap());
        assert_eq!(tested.send(request).await.status, StatusCode::OK);
        let found = warnings.take();
        let codes: Vec<_> = found.iter().map(Warning::code).collect();
        assert_eq!(
            codes,
            vec!["proxy-undeclared"; usize::from(is_mistake)],
            "{trusted:?} {peer} {headers:?}"
        );
        for warning in found {
            let text = warning.to_string();
            assert!(![peer, "198.51.100.9", "k-secret"].iter().any(|secret| text.contains(secret)), "{text}");
        }
    }
}

#[tokio::test]
async fn trusted_networks_that_hold_every_address_are_a_warning() {
    for (trusted, is_mistake) in [
        (&["0.0.0.0/0"][..], true),
        (&["10.0.0.0/8", "::/0"], true),
        (&["0.0.0.0/1", "128.0.0.0/1"], true),
        (&["10.0.0.0/8", "fd00::/8"], false),
        (&[], false),
    ] {
        let (limiter, warnings, _) = observed();
        let tested = Tested::new(layer(&limiter, Key::client_ip(ClientIp::behind(trusted).unwrap())));
        tested.send(from_peer("203.0.113.7", &[])).await;
        assert_eq!(warnings.codes(), vec!["all-addresses-trusted"; usize::from(is_mistake)], "{trusted:?}");
    }
}

#[tokio::test]
async fn nested_layers_that_charge_one_key_of_a_gate_twice_are_a_warning() {
    let (limiter, warnings, clock) = observed();
    let (other, _, _) = observed();
    let same = || layer(&limiter, by_key());
    let other_key = layer(&limiter, Key::constant("all"));
    let other_gate = RateLimitLayer::new(three_a_minute(&limiter, "login"), by_key());
    let shadow_gate = limiter.gate("api", Quota::fixed_window(1_000, HOUR)).shadow(true);
    let free = same().cost(|_| 0);
    for (inner, middle, is_mistake) in [
        (same(), None, true),
        (same(), Some(other_gate.clone()), true),
        (same(), Some(free.clone()), true),
        (RateLimitLayer::new(shadow_gate, by_key()), None, true),
        (other_gate, None, false),
        (other_key, None, false),
        (free, None, false),
        (layer(&other, by_key()), None, false),
    ] {
        clock.advance(Duration::from_secs(1));
        let router = Router::new().route("/", get(|| async {})).layer(inner);
        let router = middle.into_iter().fold(router, |router, middle| router.layer(middle));
        let router = router.layer(same());
        let request = Request::get("/").header("x-api-key", "k-secret").body(Body::empty()).unwrap();
        assert_eq!(status(&router, request).await, StatusCode::OK);
        let found = warnings.take();
        assert_eq!(found.len(), usize::from(is_mistake), "{found:?}");
        for warning in found {
            assert_eq!(
                warning.to_string(),
                "nested layers charge gate \"api\" twice for the same key of one request: remove one of them, \
                 or give each its own gate [gate-charged-twice]"
            );
        }
    }
}

#[tokio::test]
async fn cost_above_the_limit_of_every_request_is_a_warning() {
    let (limiter, warnings, clock) = observed();
    let gate = limiter.gate("upload", Quota::fixed_window(10, HOUR));
    let cost = |parts: &http::request::Parts| parts.uri.query().map_or(11, |query| query.parse().unwrap());
    let tested = Tested::new(RateLimitLayer::new(gate, by_key()).cost(cost));
    for _ in 0..2 {
        assert_eq!(tested.get("k-secret").await.status, StatusCode::BAD_REQUEST);
    }
    let found = warnings.take();
    assert_eq!(found.len(), 1);
    assert_eq!(
        found[0].to_string(),
        "each request so far costs more than the limit of gate \"upload\", 10, so none is admitted: raise the \
         limit or lower the cost [cost-above-limit]"
    );
    let affordable = Request::get("/?10").header("x-api-key", "a").body(String::new()).unwrap();
    assert_eq!(tested.send(affordable).await.status, StatusCode::OK);
    clock.advance(Duration::from_secs(10));
    assert_eq!(tested.get("a").await.status, StatusCode::BAD_REQUEST);
    assert_eq!(warnings.codes(), [""; 0], "only some requests cost too much: the clients' mistake");
}

#[tokio::test]
async fn options_without_a_key_is_a_400_with_a_warning_unless_skipped() {
    let (limiter, warnings, _) = observed();
    let preflight = || {
        let request = Request::builder().method(Method::OPTIONS).header("origin", "https://shop.example");
        request.header("access-control-request-method", "POST").body(String::new()).unwrap()
    };
    let rejecting = Tested::new(layer(&limiter, by_key()));
    assert_eq!(rejecting.send(preflight()).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(
        warnings.take()[0].to_string(),
        "an OPTIONS request, such as a CORS preflight, lacks the key of a rule and is rejected: run the CORS \
         layer before this one (in axum and actix-web, add it later, with `Router::layer` or `App::wrap`), or admit \
         OPTIONS by `RateLimitLayer::skip` [options-without-key]"
    );
    let skipping = layer(&limiter, by_key()).skip(|parts| parts.method == Method::OPTIONS);
    assert_eq!(Tested::new(skipping).send(preflight()).await.status, StatusCode::OK);
    let sharing = layer(&limiter, by_key()).missing_key(MissingKey::Share);
    assert_eq!(Tested::new(sharing).send(preflight()).await.status, StatusCode::OK);
    assert_eq!(warnings.codes(), [""; 0]);
}

#[tokio::test]
async fn clones_of_a_layer_share_their_warnings_and_layers_do_not() {
    let (limiter, warnings, _) = observed();
    let layer = || layer(&limiter, by_address()).missing_key(MissingKey::Skip);
    let one = layer();
    Tested::new(one.clone()).get("a").await;
    Tested::new(one).get("a").await;
    assert_eq!(warnings.codes(), ["peer-address-missing"]);
    Tested::new(layer()).get("a").await;
    assert_eq!(warnings.codes(), ["peer-address-missing"]);
}

#[test]
fn wait_queue_in_which_no_request_can_wait_is_refused_when_the_layer_is_built() {
    for (max_wait, max_waiting) in [(Duration::ZERO, 0), (Duration::ZERO, 1), (HOUR, 0)] {
        let build = || layer(&Limiter::in_memory(), by_key()).wait(max_wait, max_waiting);
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(build)).unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        assert!(
            text.contains("lets no request wait: use a time above zero and at least 1 request"),
            "{text}"
        );
    }
}

#[test]
#[should_panic(expected = "a RateLimitLayer cannot use this gate: gate name \"Login API\"")]
fn layer_construction_panics_on_an_invalid_gate_name() {
    let _ = layer(&Limiter::in_memory(), by_key())
        .and(Limiter::in_memory().gate("Login API", Quota::fixed_window(1, HOUR)), by_key());
}

#[tokio::test]
async fn check_that_can_never_be_decided_is_a_500_with_a_warning() {
    let (limiter, warnings, _) = observed();
    let gate = limiter.gate("Login API", Quota::fixed_window(1, HOUR));
    let layer = RateLimitLayer::choose(move |_| [GateRule::new(gate.clone(), by_key())]);
    let tested = Tested::new(layer.on_error(OnError::Admit).on_rejection(|parts, rejection| async move {
        assert!(matches!(rejection.reason(), Reason::Misconfigured(error) if error.is_config()));
        rejection.response(&parts)
    }));
    let reply = tested.get("k-secret").await;
    assert_eq!((reply.status, reply.header("retry-after")), (StatusCode::INTERNAL_SERVER_ERROR, None));
    assert_eq!(tested.calls(), 0);
    assert!(!reply.body.contains("Login API"), "clients do not see the cause: {}", reply.body);
    let warning = warnings.take().remove(0);
    assert_eq!(warning.code(), "check-misconfigured");
    assert!(warning.message().contains("\"Login API\""), "{warning}");
}

#[tokio::test]
async fn misconfigured_service_is_internal_for_grpc() {
    let mut request = request("a");
    request.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    *request.method_mut() = Method::POST;
    let reply = Tested::new(layer(&Limiter::in_memory(), by_address())).send(request).await;
    assert_eq!(tonic::Status::from_header_map(&reply.headers).unwrap().code(), tonic::Code::Internal);
}

/// Returns the status of a request without extensions under these rules, and the codes of its warnings.
async fn under_rules(actions: &str, request: Request<String>) -> (u16, Vec<&'static str>) {
    let (limiter, warnings, _) = observed();
    let limit = "rate_limit: { unit: hour, requests_per_unit: 100 }";
    let text = format!(
        "domain: api\nrate_limits: [{{ actions: [{actions}] }}]\n\
         descriptors: [{{ key: remote_address, {limit} }}, {{ key: user, {limit} }}]"
    );
    let descriptors = tidegate_http::Descriptors::of("api");
    let descriptors = descriptors.extension("user", Key::extension(|user: &String| user.clone()));
    let rules = Rules::parse("api.yaml", &text).unwrap().bind(&limiter);
    let tested = Tested::new(RateLimitLayer::with_rules(rules, descriptors).unwrap());
    (tested.send(request).await.status.as_u16(), warnings.codes())
}

#[tokio::test]
async fn rules_from_files_report_the_same_mistakes() {
    let address = "{ remote_address: {} }";
    assert_eq!(under_rules(address, request("a")).await, (500, vec!["peer-address-missing"]));
    let proxied = || from_peer("10.0.0.1", &[("x-forwarded-for", "198.51.100.9")]);
    assert_eq!(under_rules(address, proxied()).await, (200, vec!["proxy-undeclared"]));
    let user = "{ extension: { name: user } }";
    assert_eq!(under_rules(user, request("a")).await, (200, vec!["extension-missing"]));
    // A preflight without the header has no descriptor, and is not rejected.
    let mut preflight = request("a");
    *preflight.method_mut() = Method::OPTIONS;
    preflight.headers_mut().clear();
    let header = "{ request_headers: { header_name: x-api-key, descriptor_key: user } }";
    assert_eq!(under_rules(header, preflight).await, (200, vec![]));
    let mut known = request("a");
    known.extensions_mut().insert("ada".to_owned());
    assert_eq!(under_rules(user, known).await, (200, vec![]));
}

#[tokio::test]
async fn requests_without_a_mistake_report_nothing() {
    let (limiter, warnings, _) = observed();
    let key = Key::client_ip(ClientIp::behind(["10.0.0.0/8"]).unwrap());
    let service = layer(&limiter, key).layer(app(layer(&limiter, by_key())));
    for peer in ["10.0.0.1", "203.0.113.7"] {
        let mut request = from_peer(peer, &[("x-forwarded-for", "198.51.100.9")]).map(Body::from);
        request.headers_mut().insert("x-api-key", "a".parse().unwrap());
        assert_eq!(service.clone().oneshot(request).await.unwrap().status(), StatusCode::OK);
    }
    assert_eq!(warnings.codes(), [""; 0]);
}
