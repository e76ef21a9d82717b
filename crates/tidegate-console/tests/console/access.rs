//! Who may do what on the admin port: tokens, roles, sessions, CSRF, hosts and origins.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use reqwest::header::{ACCEPT, HeaderMap, LOCATION, SET_COOKIE};
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, Response};
use tidegate::ManualClock;
use tidegate_console::Console;
use tidegate_server::{Admin, Role, Server, ServerError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::server::admin_fixture::{OPERATOR, RULES, VIEWER, client, tokens};
use crate::server::fixture::{ANY, Running, in_memory};
use crate::support::fixture::{PATIENCE, soon};

/// The gate of the rule for users.
pub const GATE: &str = "d.user";

pub async fn start(admin: Admin) -> Running {
    let server = Server::new(in_memory(RULES)).admin(admin.pages(Console::new()));
    Running::of(server.drain_notice(Duration::ZERO)).await
}

/// A client with another address of this machine.
fn client_at(last: u8) -> Client {
    let address = IpAddr::from([127, 0, 0, last]);
    Client::builder().redirect(Policy::none()).local_address(address).build().unwrap()
}

pub async fn status(request: RequestBuilder) -> u16 {
    request.send().await.unwrap().status().as_u16()
}

pub const BLOCK: &str = r#"{"gate":"d.user","key":"eve","for":"1h","reason":"abuse"}"#;

fn block(server: &Running) -> RequestBuilder {
    client().post(server.admin_url("/api/block")).header("content-type", "application/json").body(BLOCK)
}

fn form(server: &Running, path: &str, body: impl Into<String>) -> RequestBuilder {
    let request = client().post(server.admin_url(path));
    request.header("content-type", "application/x-www-form-urlencoded").body(body.into())
}

/// A browser that has logged in.
struct Session {
    cookie: String,
    csrf: String,
}

async fn log_in(server: &Running, token: &str) -> Response {
    form(server, "/login", format!("token={token}&next=%2Fconfig")).send().await.unwrap()
}

/// Returns the CSRF token of the first form of a page.
async fn csrf(server: &Running, cookie: Option<&str>) -> String {
    let request = client().get(server.admin_url("/"));
    let request = cookie.into_iter().fold(request, |request, cookie| request.header("cookie", cookie));
    let page = request.send().await.unwrap().text().await.unwrap();
    let (_, rest) =
        page.split_once("type=\"hidden\" name=\"csrf\" value=\"").unwrap_or_else(|| panic!("{page}"));
    rest.split_once('"').unwrap().0.to_owned()
}

impl Session {
    async fn begin(server: &Running, token: &str) -> Self {
        let response = log_in(server, token).await;
        assert_eq!(
            (response.status().as_u16(), &response.headers()[LOCATION]),
            (303, &"/config".parse().unwrap())
        );
        let cookie = response.headers()[SET_COOKIE].to_str().unwrap();
        let cookie = cookie.split(';').next().unwrap().to_owned();
        let csrf = csrf(server, Some(&cookie)).await;
        Self { cookie, csrf }
    }

    async fn sees_pages(&self, server: &Running) -> bool {
        status(client().get(server.admin_url("/config")).header("cookie", &self.cookie)).await == 200
    }
}

#[tokio::test]
async fn only_right_tokens_read_and_only_operators_change() {
    let server = start(Admin::new(ANY).tokens(tokens())).await;
    let config = || client().get(server.admin_url("/config"));
    assert_eq!(status(config()).await, 401);
    for wrong in ["", "x", "the-token-of-the-operatos", "the-token-of-the-operator2"] {
        assert_eq!(status(config().bearer_auth(wrong)).await, 401, "{wrong}");
    }
    assert_eq!(status(config().header("authorization", format!("Basic {VIEWER}"))).await, 401);
    assert_eq!(status(config().header("authorization", b"Bearer \xff\xfe".as_slice())).await, 401);
    assert_eq!(status(config().bearer_auth(VIEWER)).await, 200);
    assert_eq!(status(config().header("authorization", format!("bearer {OPERATOR}"))).await, 200);

    assert_eq!(status(block(&server)).await, 401);
    assert_eq!(status(block(&server).bearer_auth(VIEWER)).await, 403);
    assert_eq!(status(block(&server).bearer_auth(OPERATOR)).await, 200);
    let rejected = config().send().await.unwrap();
    assert!(rejected.headers()["www-authenticate"].to_str().unwrap().starts_with("Bearer"));
    assert_eq!(rejected.headers()["content-type"], "application/problem+json");
}

#[tokio::test]
async fn browser_without_a_session_is_sent_to_the_login() {
    let server = start(Admin::new(ANY).tokens(tokens())).await;
    let page = client().get(server.admin_url("/config?format=text")).header(ACCEPT, "text/html");
    let response = page.send().await.unwrap();
    assert_eq!(response.status(), 303);
    assert_eq!(response.headers()[LOCATION], "/login?next=%2Fconfig%3Fformat%3Dtext");
    let login = client().get(server.admin_url("/login?next=//evil.example")).send().await.unwrap();
    assert_eq!(login.status(), 200);
    let text = login.text().await.unwrap();
    assert!(text.contains("type=\"password\"") && !text.contains("evil"), "{text}");
    let foreign =
        form(&server, "/login", format!("token={OPERATOR}&next=%2F%2Fevil.example")).send().await.unwrap();
    assert_eq!(foreign.headers()[LOCATION], "/");
}

#[tokio::test]
async fn session_cookie_is_out_of_reach_of_scripts_and_other_sites() {
    for (is_behind_tls, name, secure) in
        [(false, "tidegate-admin=", false), (true, "__Host-tidegate-admin=", true)]
    {
        let server = start(Admin::new(ANY).tokens(tokens()).behind_tls(is_behind_tls)).await;
        let response = log_in(&server, OPERATOR).await;
        let cookie = response.headers()[SET_COOKIE].to_str().unwrap();
        assert!(cookie.starts_with(name), "{cookie}");
        assert!(cookie.contains("; HttpOnly") && cookie.contains("; SameSite=Strict"), "{cookie}");
        assert_eq!(cookie.contains("; Secure"), secure, "{cookie}");
        assert!(!cookie.contains("Domain"), "{cookie}");
    }
}

#[tokio::test]
async fn change_of_a_session_needs_its_own_csrf_token() {
    let server = start(Admin::new(ANY).tokens(tokens())).await;
    let (ada, other) = (Session::begin(&server, OPERATOR).await, Session::begin(&server, OPERATOR).await);
    let vic = Session::begin(&server, VIEWER).await;
    let change = |csrf: Option<&str>| {
        let request = block(&server).header("cookie", &ada.cookie);
        csrf.into_iter().fold(request, |request, csrf| request.header("x-csrf-token", csrf))
    };
    let long = "0".repeat(64);
    for csrf in [None, Some(""), Some("x"), Some(&*long), Some(&*other.csrf), Some(&*vic.csrf)] {
        assert_eq!(status(change(csrf)).await, 403, "{csrf:?}");
    }
    assert_eq!(status(change(Some(&ada.csrf))).await, 200);
    assert_eq!(
        status(block(&server).header("cookie", &vic.cookie).header("x-csrf-token", &vic.csrf)).await,
        403
    );

    let log_out = |body: String| form(&server, "/logout", body).header("cookie", &ada.cookie);
    let (own, foreign) = (&ada.csrf, &other.csrf);
    for body in
        ["".to_owned(), "csrf=".to_owned(), format!("csrf={foreign}"), format!("csrf={own}&csrf={foreign}")]
    {
        assert_eq!(status(log_out(body.clone())).await, 403, "{body}");
    }
    assert!(ada.sees_pages(&server).await);
    assert_eq!(status(log_out(format!("csrf={own}"))).await, 303);
    assert!(!ada.sees_pages(&server).await, "the session has ended");
    assert!(other.sees_pages(&server).await);
}

#[tokio::test]
async fn session_ends_when_idle_at_its_longest_age_and_with_a_new_login() {
    let clock = ManualClock::new();
    let server = start(Admin::new(ANY).tokens(tokens()).manual_clock(clock.clone())).await;
    let minute = Duration::from_secs(60);
    let idle = Session::begin(&server, OPERATOR).await;
    clock.advance(29 * minute);
    assert!(idle.sees_pages(&server).await);
    clock.advance(30 * minute);
    assert!(!idle.sees_pages(&server).await);
    let change = block(&server).header("cookie", &idle.cookie).header("x-csrf-token", &idle.csrf);
    assert_eq!(status(change).await, 401, "an expired session changes nothing");

    let used = Session::begin(&server, OPERATOR).await;
    for _ in 0..24 {
        assert!(used.sees_pages(&server).await);
        clock.advance(29 * minute);
    }
    clock.advance(24 * minute);
    assert!(!used.sees_pages(&server).await, "12 hours have passed");

    let first = Session::begin(&server, VIEWER).await;
    let again = form(&server, "/login", format!("token={OPERATOR}")).header("cookie", &first.cookie);
    assert_eq!(status(again).await, 303);
    assert!(!first.sees_pages(&server).await);
}

#[tokio::test]
async fn wrong_tokens_are_limited_for_their_address_only() {
    let clock = ManualClock::new();
    let server = start(Admin::new(ANY).tokens(tokens()).manual_clock(clock.clone())).await;
    let read =
        |address: u8, token: &str| client_at(address).get(server.admin_url("/config")).bearer_auth(token);
    for _ in 0..50 {
        assert_eq!(status(read(1, VIEWER)).await, 200, "right tokens do not count");
    }
    for _ in 0..5 {
        assert_eq!(status(read(1, "wrong")).await, 401);
        assert_eq!(log_in(&server, "wrong").await.status(), 401, "both ways count together");
    }
    let limited = read(1, "wrong").send().await.unwrap();
    assert_eq!((limited.status().as_u16(), &limited.headers()["retry-after"]), (429, &"10".parse().unwrap()));
    assert_eq!(log_in(&server, "wrong").await.status(), 429);
    assert_eq!(status(read(2, "wrong")).await, 401, "another address");
    assert_eq!(status(read(1, VIEWER)).await, 200, "right tokens of the same address are not locked out");
    assert_eq!(log_in(&server, OPERATOR).await.status(), 303);
    assert_eq!(status(read(1, "wrong")).await, 429, "right tokens give no further attempts");
    clock.advance(Duration::from_secs(10));
    assert_eq!(status(read(1, "wrong")).await, 401);
}

/// Sends a request on an open connection, and returns the status of the response; `None` if the server has closed it.
async fn ask(stream: &mut TcpStream, fields: &str) -> Option<u16> {
    let head = format!("GET /config HTTP/1.1\r\nhost: 127.0.0.1\r\n{fields}\r\n");
    stream.write_all(head.as_bytes()).await.ok()?;
    let mut response = Vec::new();
    loop {
        let bytes = stream.read_buf(&mut response).await.ok()?;
        let text = String::from_utf8_lossy(&response);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.split("content-length: ").nth(1)?.lines().next()?.parse::<usize>().ok()?;
            if body.len() >= length {
                return head[9..12].parse().ok();
            }
        }
        if bytes == 0 {
            return None;
        }
    }
}

#[tokio::test]
async fn clients_without_a_token_keep_those_with_one_out_of_no_place() {
    let server = start(Admin::new(ANY).tokens(tokens())).await;
    let address = server.admin_addr.unwrap();
    let bearer = format!("authorization: Bearer {OPERATOR}\r\n");
    let mut prometheus = TcpStream::connect(address).await.unwrap();
    assert_eq!(ask(&mut prometheus, &bearer).await, Some(200));
    let mut clients = JoinSet::new();
    for _ in 0..300 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // As long as the server lets it: a silent connection ends after 5 s.
        clients.spawn(async move {
            while ask(&mut stream, "").await == Some(401) {
                sleep(Duration::from_millis(200)).await;
            }
        });
    }
    let mut operator = TcpStream::connect(address).await.unwrap();
    assert_eq!(timeout(PATIENCE, ask(&mut operator, &bearer)).await.unwrap(), Some(200));
    let other = client_at(2).get(server.admin_url("/config")).bearer_auth(VIEWER);
    assert_eq!(timeout(PATIENCE, status(other)).await.unwrap(), 200);
    soon("few connections of one address are left without a token", async || {
        while clients.try_join_next().is_some() {}
        clients.len() <= 16
    })
    .await;
    // The places of both are kept, although newer clients came.
    assert_eq!(ask(&mut prometheus, &bearer).await, Some(200));
    assert_eq!(ask(&mut operator, &bearer).await, Some(200));
    clients.shutdown().await;
    drop((prometheus, operator));
    assert!(server.stop().await);
}

#[tokio::test]
async fn page_of_another_site_can_neither_read_nor_change() {
    let admin = Admin::new(ANY).open_role(Role::Operator).host("limits.example");
    let server = start(admin).await;
    let get = |host: &str| client().get(server.admin_url("/config")).header("host", host);
    for host in ["evil.example", "evil.example:8082", "127.0.0.1.evil.example", "localhost.evil.example"] {
        let rejected = get(host).send().await.unwrap();
        assert_eq!(rejected.status(), 421, "{host}");
        assert!(!rejected.text().await.unwrap().contains("evil"));
    }
    for host in ["localhost:1", "limits.example", "[::1]"] {
        assert_eq!(status(get(host)).await, 200, "{host}");
    }
    let own = format!("http://{}", server.admin_addr.unwrap());
    for (name, foreign) in [
        ("origin", "http://evil.example"),
        ("origin", "null"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
    ] {
        assert_eq!(status(block(&server).header(name, foreign)).await, 403, "{name}: {foreign}");
    }
    // What a form of another site can send: no JSON.
    let plain =
        client().post(server.admin_url("/api/block")).header("content-type", "text/plain").body(BLOCK);
    assert_eq!(status(plain).await, 415);
    assert_eq!(status(form(&server, "/logout", "")).await, 403, "a form needs the token of this process");
    let preflight = client().request(reqwest::Method::OPTIONS, server.admin_url("/api/block"));
    let preflight = preflight.header("origin", "http://evil.example").send().await.unwrap();
    assert!(!preflight.headers().contains_key("access-control-allow-origin"));
    let from_here = block(&server).header("origin", own).header("sec-fetch-site", "same-origin");
    assert_eq!(status(from_here).await, 200);
}

#[tokio::test]
async fn port_without_tokens_is_of_this_machine_and_for_viewers() {
    let server = start(Admin::new(ANY)).await;
    assert_eq!(status(client().get(server.admin_url("/config"))).await, 200);
    assert_eq!(status(block(&server)).await, 403);
    let anywhere: SocketAddr = "0.0.0.0:0".parse().unwrap();
    for address in [anywhere, "[::]:0".parse().unwrap(), "[::ffff:10.0.0.1]:0".parse().unwrap()] {
        let admin = Admin::new(address).open_role(Role::Operator);
        let error = Server::new(in_memory(RULES)).admin(admin).bind(ANY, ANY).await.unwrap_err();
        assert!(matches!(error, ServerError::AdminNeedsTokens(_)), "{address}");
        assert!(error.to_string().contains("--admin-tokens FILE"), "{error}");
    }
    let open = Server::new(in_memory(RULES)).admin(Admin::new(anywhere).tokens(tokens()));
    assert!(open.bind(ANY, ANY).await.is_ok());
}

#[tokio::test]
async fn each_response_has_the_security_headers() {
    let server = start(Admin::new(ANY).tokens(tokens())).await;
    let get = |path: &str| client().get(server.admin_url(path));
    let long = "x".repeat(100_000);
    for (expected, request) in [
        (200, get("/login")),
        (200, get("/config").bearer_auth(VIEWER)),
        (401, get("/config")),
        (303, get("/config").header(ACCEPT, "text/html")),
        (404, get("/other").bearer_auth(VIEWER)),
        (404, get("/%00%ff<script>")),
        (404, get("/metrics").bearer_auth(VIEWER)),
        (405, get("/api/block").bearer_auth(OPERATOR)),
        (403, block(&server).bearer_auth(VIEWER)),
        (400, block(&server).bearer_auth(OPERATOR).body("{")),
        (413, block(&server).bearer_auth(OPERATOR).body(long)),
        (415, client().post(server.admin_url("/api/block")).bearer_auth(OPERATOR).body(BLOCK)),
        (421, get("/config").header("host", "evil.example")),
    ] {
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), expected);
        assert_headers(response.headers());
    }
}

fn assert_headers(headers: &HeaderMap) {
    let policy = headers["content-security-policy"].to_str().unwrap();
    for part in [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    ] {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-store"),
        ("x-frame-options", "DENY"),
    ] {
        assert_eq!(headers[name], value);
    }
}

#[tokio::test]
async fn open_page_that_polls_does_not_keep_its_session() {
    let clock = ManualClock::new();
    let server = start(Admin::new(ANY).tokens(tokens()).manual_clock(clock.clone())).await;
    let ada = Session::begin(&server, OPERATOR).await;
    let script = client().get(server.admin_url("/assets/console.js")).header("cookie", &ada.cookie);
    let script = script.send().await.unwrap().text().await.unwrap();
    assert!(script.contains("\"x-tidegate-poll\": \"1\""), "{script}");
    let poll = || {
        let request = client().get(server.admin_url("/live")).header("cookie", &ada.cookie);
        request.header("x-tidegate-poll", "1").header(ACCEPT, "text/html")
    };
    for _ in 0..29 {
        clock.advance(Duration::from_secs(60));
        assert_eq!(status(poll()).await, 200);
    }
    clock.advance(Duration::from_secs(60));
    let ended = poll().send().await.unwrap();
    assert_eq!(ended.status(), 303);
    assert!(ended.headers()[LOCATION].to_str().unwrap().starts_with("/login"));
}
