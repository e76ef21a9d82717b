//! What only the adapter for actix-web does. `conformance` has the behavior that all frameworks share.

use std::sync::{Arc, Mutex};

use actix_web::body::{BodySize, BoxBody, MessageBody, to_bytes};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::error::{ErrorUnauthorized, InternalError};
use actix_web::http::header::HeaderValue;
use actix_web::http::{Method, StatusCode, Uri};
use actix_web::middleware::{Next, NormalizePath, TrailingSlash, from_fn};
use actix_web::test::{TestRequest, call_service, init_service, try_call_service};
use actix_web::{App, Error, HttpMessage, HttpRequest, HttpResponse, Responder, web};
use bytes::Bytes;
use tidegate::{Event, Gate, Limiter, ManualClock, Observer, Quota};
use tidegate_http::{
    Charge, ClientIp, Key, PeerAddr, RateLimitLayer, Reason, Rejection, RequestPermits, ResponseBody, Usage,
};

use crate::conformance::{self, client::Client};
use crate::http::fixture::by_key;
use crate::support::fixture::{HOUR, soon};

fn gate(name: &str) -> Gate {
    Limiter::in_memory().gate(name, Quota::fixed_window(9, HOUR))
}

async fn used(gate: &Gate, key: &str) -> u64 {
    9 - gate.peek(key).await.unwrap().remaining()
}

fn get(path: &str) -> TestRequest {
    TestRequest::with_uri(path).insert_header(("x-api-key", "a"))
}

fn header<B>(response: &HttpResponse<B>, name: &str) -> String {
    let values = response.headers().get_all(name).map(|value| value.to_str().unwrap());
    values.collect::<Vec<_>>().join(", ")
}

async fn text(response: HttpResponse<impl MessageBody>) -> String {
    let bytes = to_bytes(response.into_body()).await.unwrap_or_else(|error| panic!("{}", error.into()));
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The codes of a limiter's warnings.
#[derive(Clone, Default)]
struct Codes(Arc<Mutex<Vec<&'static str>>>);

impl Observer for Codes {
    fn on(&self, event: &Event<'_>) {
        if let Event::Warned(warning) = event {
            self.0.lock().unwrap().push(warning.code());
        }
    }

    fn reports_warnings(&self) -> bool {
        true
    }
}

fn observed() -> (Limiter, Codes) {
    let codes = Codes::default();
    (Limiter::builder().in_memory().observer(codes.clone()).build().unwrap(), codes)
}

#[tokio::test]
async fn keys_are_those_of_the_connection_the_path_and_the_resource_wherever_the_layer_is() {
    let keys = || Key::all([Key::client_ip(ClientIp::peer()), Key::path(), Key::path_template()]);
    let gates = ["app", "scope", "resource"].map(gate);
    let [app, scope, resource] = gates.clone().map(|gate| RateLimitLayer::new(gate, keys()));
    let resource = web::resource("/{id}").wrap(resource).to(async || "hello");
    let users = web::scope("/users").wrap(scope).service(resource);
    let app = init_service(App::new().service(users).wrap(app)).await;
    let peer = "203.0.113.7:4711".parse().unwrap();
    for (path, status) in [("/users/42?a=b", 200), ("/%75sers/4%32", 200), ("/orders", 400)] {
        let response = call_service(&app, get(path).peer_addr(peer).to_request()).await;
        assert_eq!(response.status(), status, "{path}");
    }
    for gate in &gates {
        assert_eq!(used(gate, "203.0.113.7|/users/42|/users/{id}").await, 2, "{gate:?}");
    }
    let unknown = call_service(&app, get("/users/42").to_request()).await;
    assert_eq!(unknown.status(), 500, "no address of a peer");
}

#[tokio::test]
async fn path_that_a_later_middleware_normalizes_has_its_path_template() {
    let gate = gate("api");
    let login = web::resource("/login").to(async || "hello");
    let users = web::resource("/users/{id}/").to(async || "hello");
    let app = App::new().service(login).service(users).wrap(NormalizePath::new(TrailingSlash::MergeOnly));
    let app = app.wrap(RateLimitLayer::new(gate.clone(), Key::path_template()));
    let app = init_service(app).await;
    for (path, template) in [("/login", "/login"), ("//login", "/login"), ("/users//7/", "/users/{id}/")] {
        let before = used(&gate, template).await;
        assert_eq!(call_service(&app, get(path).to_request()).await.status(), 200, "{path}");
        assert_eq!(used(&gate, template).await, before + 1, "{path}");
    }
    for path in ["/login/", "/login//", "/users/7"] {
        let before = used(&gate, "/login").await + used(&gate, "/users/{id}/").await;
        call_service(&app, get(path).to_request()).await;
        let after = used(&gate, "/login").await + used(&gate, "/users/{id}/").await;
        assert_eq!(after, before + 1, "{path}");
    }
}

#[tokio::test]
async fn request_with_too_many_headers_is_rejected() {
    let gate = gate("api");
    let layer = RateLimitLayer::new(gate.clone(), Key::path());
    let app = init_service(App::new().wrap(layer)).await;
    let mut request = get("/");
    for _ in 0..40_000 {
        request = request.append_header(("x-same", "1"));
    }
    let rejected = try_call_service(&app, request.to_request()).await;
    let status = rejected.map_or_else(|error| error.as_response_error().status_code(), |it| it.status());
    assert!(status == 400 || status == 404, "{status}");
}

#[tokio::test]
async fn peer_that_an_earlier_middleware_inserts_takes_precedence() {
    let gate = gate("api");
    let proxied = from_fn(|request: ServiceRequest, next: Next<_>| {
        request.extensions_mut().insert(PeerAddr("198.51.100.9:1".parse().unwrap()));
        next.call(request)
    });
    let layer = RateLimitLayer::new(gate.clone(), Key::client_ip(ClientIp::peer()));
    let app = init_service(App::new().wrap(layer).wrap(proxied)).await;
    call_service(&app, get("/").peer_addr("203.0.113.7:1".parse().unwrap()).to_request()).await;
    assert_eq!((used(&gate, "198.51.100.9").await, used(&gate, "203.0.113.7").await), (1, 0));
}

#[derive(Clone)]
struct User(u64);

async fn authenticate(
    request: ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    request.extensions_mut().insert(User(7));
    next.call(request).await
}

#[tokio::test]
async fn extension_of_an_earlier_middleware_is_a_key_once_the_layer_names_its_type() {
    let (limiter, codes) = observed();
    let gate = limiter.gate("api", Quota::fixed_window(9, HOUR));
    let layer = RateLimitLayer::new(gate.clone(), Key::extension(|user: &User| user.0));
    let unnamed = init_service(App::new().wrap(layer.clone()).wrap(from_fn(authenticate))).await;
    assert_eq!(call_service(&unnamed, get("/").to_request()).await.status(), 500);
    assert_eq!(*codes.0.lock().unwrap(), ["extension-missing"]);
    let named = layer.actix_extension::<User>();
    let named = init_service(App::new().wrap(named).wrap(from_fn(authenticate))).await;
    assert_eq!(call_service(&named, get("/").to_request()).await.status(), 404, "no route, but admitted");
    assert_eq!(used(&gate, "7").await, 1);
}

#[tokio::test]
async fn last_wrap_runs_first_so_cors_responds_to_a_preflight_before_it_is_counted() {
    async fn cors(
        request: ServiceRequest,
        next: Next<impl MessageBody + 'static>,
    ) -> Result<ServiceResponse<impl MessageBody>, Error> {
        if request.method() == Method::OPTIONS {
            let allowed =
                HttpResponse::NoContent().insert_header(("access-control-allow-origin", "*")).finish();
            return Ok(request.into_response(allowed).map_into_boxed_body());
        }
        Ok(next.call(request).await?.map_into_boxed_body())
    }
    let gate = gate("api");
    let layer = RateLimitLayer::new(gate.clone(), by_key());
    let preflight = || TestRequest::with_uri("/").method(Method::OPTIONS).to_request();
    let outside = init_service(App::new().wrap(layer.clone()).wrap(from_fn(cors))).await;
    let response = call_service(&outside, preflight()).await;
    assert_eq!((response.status().as_u16(), &*header(response.response(), "x-ratelimit-limit")), (204, ""));
    let inside = init_service(App::new().wrap(from_fn(cors)).wrap(layer)).await;
    assert_eq!(call_service(&inside, preflight()).await.status(), 400, "it lacks the key");
    assert_eq!(used(&gate, "a").await, 0);
}

/// A middleware that responds with an error.
async fn refuse(request: ServiceRequest, _: Next<BoxBody>) -> Result<ServiceResponse, Error> {
    Err(match request.path() {
        "/teapot" => InternalError::from_response("no", HttpResponse::ImATeapot().body("no")).into(),
        _ => ErrorUnauthorized("no"),
    })
}

#[tokio::test]
async fn error_of_an_inner_middleware_stays_that_error_and_is_charged_by_its_status() {
    let gate = gate("login");
    let layer = RateLimitLayer::new(gate.clone(), by_key()).charge(Charge::when(|head| head.status == 401));
    let app = init_service(App::new().wrap(from_fn(refuse)).wrap(layer)).await;
    for (path, status) in [("/", 401), ("/teapot", 418)] {
        let error = try_call_service(&app, get(path).to_request()).await.err().unwrap();
        assert!(error.as_error::<InternalError<&str>>().is_some(), "{error:?}");
        let response = error.error_response();
        assert_eq!((response.status().as_u16(), &*header(&response, "x-ratelimit-remaining")), (status, "8"));
        assert!(header(&response, "ratelimit").starts_with("\"login\";r=8;t="), "{response:?}");
        assert_eq!(text(response).await, "no");
        assert_eq!(used(&gate, "a").await, 1);
    }
}

#[tokio::test]
async fn error_of_an_inner_middleware_releases_the_permit() {
    let gate = Limiter::in_memory().gate("uploads", Quota::in_flight(1));
    let layer = RateLimitLayer::new(gate.clone(), by_key());
    let app = init_service(App::new().wrap(from_fn(refuse)).wrap(layer)).await;
    assert!(try_call_service(&app, get("/").to_request()).await.is_err());
    soon("the permit is released", async || gate.peek("a").await.unwrap().remaining() == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn head_request_holds_its_permit_while_actix_web_polls_its_body() {
    let gate = Limiter::in_memory().gate("uploads", Quota::in_flight(1));
    let service = conformance::app::App::new();
    let server = conformance::actix::serve(RateLimitLayer::new(gate.clone(), by_key()), service.clone());
    let mut client = Client::connect(server.address).await;
    let head = client.send(http::Method::HEAD, "/stream", &[("x-api-key", "a")]).await;
    assert_eq!((head.status.as_u16(), service.inside()), (200, 1));
    assert_eq!(Client::connect(server.address).await.get("/").await.status, 429);
    service.step();
    soon("the permit is released", async || gate.peek("a").await.unwrap().remaining() == 1).await;
}

#[tokio::test]
async fn upgraded_connection_holds_its_permit_until_its_stream_has_ended() {
    let (limiter, codes) = observed();
    let gate = limiter.gate("sockets", Quota::in_flight(1));
    let upgrade = async || {
        let stream = futures_util::stream::iter([Ok::<_, Error>(Bytes::from("one"))]);
        HttpResponse::SwitchingProtocols().upgrade("echo").streaming(stream)
    };
    let app = App::new().wrap(RateLimitLayer::new(gate.clone(), by_key()));
    let app = init_service(app.default_service(web::to(upgrade))).await;
    let response = call_service(&app, get("/").to_request()).await.into_parts().1;
    assert_eq!((response.status().as_u16(), gate.peek("a").await.unwrap().remaining()), (101, 0));
    assert_eq!(text(response).await, "one");
    soon("the permit is released", async || gate.peek("a").await.unwrap().remaining() == 1).await;
    assert_eq!(*codes.0.lock().unwrap(), [""; 0], "no clone is needed");
}

#[tokio::test]
async fn nested_layers_share_permits_and_usage_and_merge_their_headers() {
    async fn work(usage: Usage, permits: RequestPermits) -> String {
        usage.set(3);
        format!("held: {}", permits.is_held() && !permits.is_empty())
    }
    let (limiter, codes) = observed();
    let [outer, inner] = ["outer", "inner"].map(|name| limiter.gate(name, Quota::fixed_window(9, HOUR)));
    let slots = limiter.gate("slots", Quota::in_flight(1));
    let usage = |gate: &Gate| RateLimitLayer::new(gate.clone(), by_key()).charge(Charge::usage());
    let scope = web::scope("").wrap(usage(&inner)).route("/", web::get().to(work));
    let app = App::new().service(scope).wrap(usage(&outer).and(slots.clone(), by_key()));
    let app = init_service(app).await;
    let response = call_service(&app, get("/").to_request()).await;
    assert_eq!(slots.peek("a").await.unwrap().remaining(), 0, "held until the body has ended");
    let policies = header(response.response(), "ratelimit-policy");
    assert!(policies.contains("\"outer\"") && policies.contains("\"inner\""), "{policies}");
    assert_eq!(text(response.into_parts().1).await, "held: true");
    soon("the permit is released", async || slots.peek("a").await.unwrap().remaining() == 1).await;
    soon("both are charged", async || used(&outer, "a").await == 3 && used(&inner, "a").await == 3).await;
    assert_eq!(*codes.0.lock().unwrap(), [""; 0]);

    let twice = || RateLimitLayer::new(outer.clone(), by_key());
    let app = init_service(App::new().wrap(twice()).wrap(twice())).await;
    call_service(&app, get("/").to_request()).await;
    assert_eq!(*codes.0.lock().unwrap(), ["gate-charged-twice"]);
}

#[tokio::test]
async fn usage_that_no_layer_charges_is_an_error_unless_it_is_optional() {
    let app = App::new().wrap(RateLimitLayer::new(gate("api"), by_key()));
    let app = app.route("/", web::get().to(async |_: Usage| "reported"));
    let app = init_service(app.route(
        "/optional",
        web::get().to(async |usage: Option<Usage>| usage.map_or("not charged", |_| "charged")),
    ))
    .await;
    let required = call_service(&app, get("/").to_request()).await;
    assert_eq!(
        (required.status().as_u16(), &*header(required.response(), "x-ratelimit-remaining")),
        (500, "8")
    );
    let message = "The handler reports its usage, but no rate limit charges it. Set Charge::usage().";
    assert_eq!(text(required.into_parts().1).await, message);
    let optional = call_service(&app, get("/optional").to_request()).await;
    assert_eq!(text(optional.into_parts().1).await, "not charged");
}

#[tokio::test]
async fn response_keeps_its_headers_and_its_length() {
    let gate = gate("bytes");
    let layer = RateLimitLayer::new(gate.clone(), by_key()).charge(Charge::bytes(1));
    let respond = async || {
        let mut response = HttpResponse::Ok();
        response.append_header(("set-cookie", "a=1")).append_header(("set-cookie", "b=2")).body("hello")
    };
    let app = init_service(App::new().wrap(layer).default_service(web::to(respond))).await;
    let response = call_service(&app, get("/").to_request()).await.into_parts().1;
    assert_eq!(header(&response, "set-cookie"), "a=1, b=2");
    assert_eq!(response.body().size(), BodySize::Sized(5));
    assert_eq!(text(response).await, "hello");
    soon("five bytes are charged", async || used(&gate, "a").await == 5).await;
}

/// So no value of the handler keeps the memory of the others while HTTP/2 remembers it.
#[tokio::test]
async fn header_values_of_the_handler_are_neither_copied_nor_changed() {
    static TOKEN: &str = "token";
    let respond = async || {
        let mut value = HeaderValue::from_static(TOKEN);
        value.set_sensitive(true);
        HttpResponse::Ok().insert_header(("x-token", value)).finish()
    };
    let is_sensitive = |head: &http::response::Parts| head.headers["x-token"].is_sensitive();
    let (outer, inner) = (gate("outer"), gate("inner"));
    let layer = |gate: &Gate| RateLimitLayer::new(gate.clone(), by_key());
    let scope = web::scope("").wrap(layer(&inner).charge(Charge::when(is_sensitive)));
    let app = App::new().service(scope.default_service(web::to(respond))).wrap(layer(&outer));
    let app = init_service(app).await;
    let response = call_service(&app, get("/").to_request()).await;
    let value = response.headers().get("x-token").unwrap();
    assert!(value.is_sensitive());
    assert_eq!(value.as_bytes().as_ptr(), TOKEN.as_ptr(), "it was copied");
    let policies = header(response.response(), "ratelimit-policy");
    assert!(policies.contains("\"outer\"") && policies.contains("\"inner\""), "{policies}");
    assert_eq!(used(&inner, "a").await, 1, "the charge reads the headers of the response");
}

#[tokio::test]
async fn request_that_actix_web_accepts_is_admitted_with_its_body_whatever_its_method_and_target_are() {
    let gate = Limiter::in_memory().gate("api", Quota::fixed_window(1_000, HOUR));
    let app = App::new().wrap(RateLimitLayer::new(gate.clone(), by_key()));
    let app = init_service(app.default_service(web::to(async |body: String| body))).await;
    let ascii = (b'!'..=b'~').map(|byte| format!("/a{}b?c{}d", char::from(byte), char::from(byte)));
    let forms =
        ["*", "/", "http://x.example/y?z", "x.example:80", "/%", "/%ff//..;a=b", "/ä"].map(str::to_owned);
    let long = format!("/{}", "x".repeat(60_000));
    let targets = ascii.chain(forms).chain([long]).filter(|target| Uri::try_from(target).is_ok());
    let requests = targets.map(|target| (Method::POST, target));
    let methods = (b'!'..=b'~').filter_map(|byte| Method::from_bytes(&[b'P', byte]).ok());
    let mut sent = 0;
    for (method, target) in requests.chain(methods.map(|method| (method, "/".to_owned()))) {
        let request = get(&target).method(method).insert_header(("x-bytes", &b"\x80\xff\t~"[..]));
        let response = call_service(&app, request.set_payload("body").to_request()).await;
        let status = response.status().as_u16();
        assert_eq!((status, text(response.into_parts().1).await), (200, "body".to_owned()), "{target}");
        sent += 1;
    }
    assert!(sent > 150, "{sent}");
    assert_eq!(gate.peek("a").await.unwrap().remaining(), 1_000 - sent);
}

#[tokio::test]
async fn charge_by_trailers_leaves_the_taken_units() {
    let gate = gate("calls");
    let layer = RateLimitLayer::new(gate.clone(), by_key()).cost(|_| 2).charge(Charge::trailers(|_| Some(7)));
    let app = init_service(App::new().wrap(layer).default_service(web::to(async || "hello"))).await;
    let response = call_service(&app, get("/").to_request()).await;
    assert_eq!(text(response.into_parts().1).await, "hello");
    assert_eq!(used(&gate, "a").await, 2);
}

#[tokio::test]
async fn rejection_of_a_handler_is_a_response_in_the_form_that_the_request_prefers() {
    let gate = Limiter::in_memory().gate("mail", Quota::fixed_window(1, HOUR));
    let send = async |gate: web::Data<Gate>, request: HttpRequest| {
        let decision = gate.check("a").await.unwrap();
        match decision.is_allowed() {
            true => "sent".respond_to(&request).map_into_boxed_body(),
            false => Rejection::of(&gate, decision).respond_to(&request).map_into_boxed_body(),
        }
    };
    let app = init_service(App::new().app_data(web::Data::new(gate)).route("/", web::get().to(send))).await;
    assert_eq!(call_service(&app, get("/").to_request()).await.status(), 200);
    let denied = call_service(&app, get("/").insert_header(("accept", "text/plain")).to_request()).await;
    assert_eq!((denied.status().as_u16(), &*header(denied.response(), "retry-after")), (429, "3600"));
    assert_eq!(
        text(denied.into_parts().1).await,
        "The limit \"mail\" of 1 in 3600 seconds is exceeded. Try again in 3600 seconds.\n"
    );
}

#[tokio::test]
async fn handler_without_a_middleware_admits_and_reports_as_the_middleware_does() {
    async fn search(
        limit: web::Data<RateLimitLayer>,
        request: HttpRequest,
    ) -> Result<HttpResponse<ResponseBody<BoxBody>>, Error> {
        let admitted = limit.admit_actix(&request).await?;
        let code = if request.path() == "/fail" { StatusCode::BAD_GATEWAY } else { StatusCode::OK };
        admitted.respond_actix(&request, HttpResponse::build(code).body("found")).await
    }
    let gate = || Limiter::in_memory_with(ManualClock::new()).gate("search", Quota::fixed_window(9, HOUR));
    let (gate, same) = (gate(), gate());
    let layer = |gate: &Gate| {
        let layer =
            RateLimitLayer::new(gate.clone(), by_key()).charge(Charge::when(|head| head.status == 200));
        layer.skip(|parts| parts.uri.path() == "/skipped")
    };
    let respond = async |request: HttpRequest| match request.path() {
        "/fail" => HttpResponse::BadGateway().body("found"),
        _ => HttpResponse::Ok().body("found"),
    };
    let inside = App::new().app_data(web::Data::new(layer(&gate))).default_service(web::to(search));
    let inside = init_service(inside).await;
    let outside = init_service(App::new().wrap(layer(&same)).default_service(web::to(respond))).await;
    let paths = ["/", "/fail", "/skipped"].into_iter().chain(["/"; 8]).chain(["/", "/skipped"]);
    let mut statuses = Vec::new();
    for path in paths {
        let [inside, outside] = [
            call_service(&inside, get(path).to_request()).await.into_parts().1.map_into_boxed_body(),
            call_service(&outside, get(path).to_request()).await.into_parts().1.map_into_boxed_body(),
        ];
        assert_eq!(inside.status(), outside.status());
        let names = ["x-ratelimit-remaining", "ratelimit-policy", "retry-after", "cache-control"];
        for name in names.iter().chain(&["content-type"]) {
            assert_eq!(header(&inside, name), header(&outside, name), "{path}: {name}");
        }
        statuses.push(inside.status().as_u16());
        assert_eq!(text(inside).await, text(outside).await);
    }
    assert_eq!(statuses[..3], [200, 502, 200]);
    assert_eq!(statuses[3..], [200, 200, 200, 200, 200, 200, 200, 200, 429, 200]);
    assert_eq!(used(&gate, "a").await, 9);

    let denied = layer(&gate).admit_actix(&get("/").to_http_request()).await.unwrap_err();
    let rejection = denied.as_error::<Rejection>().unwrap();
    assert!(matches!(rejection.reason(), Reason::Denied(_)));
    assert_eq!(denied.to_string(), rejection.message());
}
