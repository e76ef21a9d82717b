//! A service with an admin port on a Redis, and figures of a fleet as instances publish them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, Response};
use tidegate::{Limiter, Quota};
use tidegate_rules::{Loader, Rules};
use tidegate_server::{Admin, AdminTokens, BoundServer, RateLimitService, Server as Service, ServerError};
use tidegate_testkit::{Server, shared};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::server::fixture::ANY;
use crate::support::fixture::{builder, namespace};

/// The maximum weight of a page with all that it loads.
pub const MAX_PAGE_BYTES: usize = 200_000;

pub const OPERATOR: &str = "operator-token-000001";
pub const VIEWER: &str = "viewer-token-00000001";

/// The windows are long: a shorter one would end during some runs.
pub const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: { unit: day, requests_per_unit: 3 }
  - key: path
    value: /search
    rate_limit: { unit: hour, requests_per_unit: 100 }
    shadow_mode: true
";

/// The quota of the rule for users.
pub fn users_quota() -> Quota {
    Rules::parse("shop.yaml", RULES).unwrap().iter().next().unwrap().quota().unwrap()
}

/// The gate of the rule for users.
pub const USERS: &str = "shop.user";

/// A service with its admin port.
pub struct Console {
    pub server: Arc<Server>,
    pub namespace: String,
    pub address: SocketAddr,
    stop: oneshot::Sender<()>,
    running: JoinHandle<Result<bool, ServerError>>,
}

/// Returns a limiter of a namespace on this server, as another service of the fleet has it.
pub fn limiter(server: &Server, namespace: &str) -> Limiter {
    builder(server.url()).publish_figures(true).namespace(namespace).build().unwrap()
}

impl Console {
    pub async fn start(rules: &str) -> Self {
        let (server, namespace) = (shared(), namespace());
        let rules = Rules::parse("shop.yaml", rules).unwrap();
        let limiter = limiter(&server, &namespace);
        // An attempt to connect has a second, which a busy machine may not keep.
        limiter.ready_within(Duration::from_secs(60)).await.unwrap();
        let service = RateLimitService::new(rules.bind(&limiter));
        Self::of(server, namespace, service, None).await
    }

    /// Starts a service whose rules reload from this path.
    pub async fn watching(path: &std::path::Path) -> Self {
        Self::watching_in(path, namespace()).await
    }

    pub async fn watching_in(path: &std::path::Path, namespace: String) -> Self {
        let server = shared();
        let rules = Loader::new().watch(path, &limiter(&server, &namespace)).unwrap();
        Self::of(server, namespace, RateLimitService::new(rules), None).await
    }

    pub async fn of(
        server: Arc<Server>,
        namespace: String,
        service: RateLimitService,
        clock: Option<tidegate::ManualClock>,
    ) -> Self {
        let tokens = format!("ada operator token:{OPERATOR}\nbob viewer token:{VIEWER}\n");
        let admin = Admin::new(ANY).tokens(AdminTokens::parse(&tokens).unwrap());
        let admin = admin.pages(tidegate_console::Console::new());
        let admin = match clock {
            Some(clock) => admin.manual_clock(clock),
            None => admin,
        };
        let service = Service::new(service).drain_notice(Duration::ZERO).admin(admin);
        let bound: BoundServer = service.bind(ANY, ANY).await.unwrap();
        let address = bound.admin_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(bound.run(async { drop(stopped.await) }));
        Self { server, namespace, address, stop, running }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn limiter(&self) -> Limiter {
        limiter(&self.server, &self.namespace)
    }

    /// Returns the response to a reader with a token.
    pub async fn get(&self, path: &str) -> Response {
        let request = client().get(self.url(path)).bearer_auth(VIEWER).header("accept", "text/html");
        request.send().await.unwrap()
    }

    /// Returns a page, which must have this status.
    pub async fn page(&self, path: &str, status: u16) -> String {
        let response = self.get(path).await;
        let found = response.status().as_u16();
        let page = response.text().await.unwrap();
        assert_eq!(found, status, "{path}: {page}");
        page
    }

    pub async fn stop(self) {
        drop(self.stop);
        self.running.await.unwrap().unwrap();
    }

    /// Writes figures as an instance publishes them: `gates` gates in each bucket of the last `minutes`, and one
    /// instance. `text` is that of each gate.
    pub fn publish(&self, gates: &[&str], minutes: u64, text: &str) {
        let minutes = minutes.to_string();
        let mut words = vec!["EVAL", PUBLISH, "0", &self.namespace, &minutes, text];
        words.extend(gates);
        self.server.cli(&words).unwrap();
    }
}

/// Writes the hashes of `src/observe/figures/format.rs`.
const PUBLISH: &str = "
    local time = redis.call('TIME')
    local now = time[1] - time[1] % 5
    for start = now - 60 * ARGV[2], now, 5 do
        local key = ARGV[1] .. ':1:figures/' .. start
        for gate = 4, #ARGV do redis.call('HSET', key, ARGV[gate], ARGV[3]) end
        redis.call('HSET', key, '(latency)', '256=90 1024=9 4096=1')
        redis.call('EXPIRE', key, 600)
    end
    local record = time[1] - time[1] % 15
    local key = ARGV[1] .. ':1:instances/' .. record
    redis.call('HSET', key, '3f2a', 'version=0.1.0 breaker=closed errors=2 at=' .. time[1] .. '000000')
    redis.call('EXPIRE', key, 600)
    return 'OK'";

/// A client that follows no redirect.
pub fn client() -> Client {
    Client::builder().redirect(Policy::none()).build().unwrap()
}

/// A client with a session, as a browser has it.
pub struct Session {
    client: Client,
    cookie: String,
}

impl Session {
    pub async fn begin(console: &Console, token: &str) -> Self {
        let client = client();
        let form = [("token", token), ("next", "/")];
        let response = with_form(client.post(console.url("/login")), &form).send().await.unwrap();
        assert_eq!(response.status(), 303);
        let cookie = response.headers()["set-cookie"].to_str().unwrap();
        Self { client, cookie: cookie.split(';').next().unwrap().to_owned() }
    }

    pub async fn get(&self, console: &Console, path: &str) -> Response {
        let request = self.client.get(console.url(path)).header("cookie", &self.cookie);
        request.header("accept", "text/html").send().await.unwrap()
    }

    pub async fn post(&self, console: &Console, path: &str, form: &[(&str, &str)]) -> Response {
        let request = self.client.post(console.url(path)).header("cookie", &self.cookie);
        with_form(request.header("accept", "text/html"), form).send().await.unwrap()
    }

    /// Returns the CSRF token in the forms of this session.
    pub async fn csrf(&self, console: &Console) -> String {
        let page = self.get(console, "/").await.text().await.unwrap();
        hidden(&page, "csrf")
    }
}

/// Returns the value of a hidden field.
pub fn hidden(page: &str, name: &str) -> String {
    let field = page.split(&format!("name=\"{name}\" value=\"")).nth(1).unwrap();
    field.split('"').next().unwrap().to_owned()
}

/// The pages of the console without parameters.
pub const PAGES: [&str; 9] =
    ["/", "/live", "/gates", "/keys", "/keys/live", "/overrides", "/rules", "/explain", "/health"];

/// Adds the body of a form.
pub fn with_form(request: RequestBuilder, form: &[(&str, &str)]) -> RequestBuilder {
    let mut body = form_urlencoded::Serializer::new(String::new());
    body.extend_pairs(form);
    request.header("content-type", "application/x-www-form-urlencoded").body(body.finish())
}
