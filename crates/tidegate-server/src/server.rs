//! The server: its settings, its ports, and its end.

use std::convert::Infallible;
use std::future::{Future, pending};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::maybe_done;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};
use tonic::service::Routes;

use crate::admin::{Admin, AdminState, ChangeTracker, Listening};
use crate::body::BodyMemory;
use crate::connections::{Admission, Guests, Port, Stop};
use crate::grpc::GrpcHealth;
use crate::grpc_port::GrpcPort;
use crate::http_state::HttpState;
use crate::metrics::ServiceMetrics;
use crate::permits::PermitTable;
use crate::readiness::{NeedsRedis, Readiness};
use crate::server_error::{PortName, ServerError};
use crate::service::RateLimitService;
use crate::tls::Tls;
use crate::trace::{SpanHook, traced};
use crate::{admin, grpc, http_api, http1};

/// The maximum number of connections to the admin port whose clients have shown a token: operators and their tools are few.
const MAX_ADMIN_CONNECTIONS: usize = 256;
/// Connections to the admin port whose clients have not shown a token yet. A browser opens up to six.
const ADMIN_GUESTS: Guests = Guests { max: 64, max_per_client: 16 };
/// Connections to the HTTP port above the maximum, for probes.
const HTTP_GUESTS: Guests = Guests { max: 64, max_per_client: 16 };
/// The open files of a server beside the connections to its ports: rules, certificates, connections to Redis and listeners.
const OTHER_FILES: usize = 64;

/// The settings of a server. [`bind`](Self::bind) opens its ports.
///
/// ```no_run
/// # async fn example(rules: tidegate_rules::RulesLimiter) -> Result<(), Box<dyn std::error::Error>> {
/// use tidegate_server::{RateLimitService, Server};
///
/// let server = Server::new(RateLimitService::new(rules));
/// let server = server.bind("127.0.0.1:8081".parse()?, "127.0.0.1:8080".parse()?).await?;
/// server.run(async { /* returns when the process should end */ }).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Server {
    service: RateLimitService,
    tls: Option<Tls>,
    admin: Option<Admin>,
    metrics: Option<ServiceMetrics>,
    keepalive: Duration,
    max_connection_age: Duration,
    max_connections: usize,
    max_permits: usize,
    max_message_bytes: usize,
    max_unfinished_bytes: usize,
    span_hook: SpanHook,
    drain_notice: Duration,
    drain: Duration,
    needs_redis: NeedsRedis,
}

impl Server {
    /// Creates the settings of a server for this service, with the defaults.
    pub fn new(service: RateLimitService) -> Self {
        Self {
            service,
            tls: None,
            admin: None,
            metrics: None,
            keepalive: Duration::from_secs(60),
            max_connection_age: Duration::from_secs(30 * 60),
            max_connections: 4_096,
            max_permits: 10_000,
            max_message_bytes: 64 << 10,
            max_unfinished_bytes: 32 << 20,
            span_hook: SpanHook::default(),
            drain_notice: Duration::from_secs(1),
            drain: Duration::from_secs(10),
            needs_redis: NeedsRedis::default(),
        }
    }

    /// Sets the certificates of the gRPC port.
    ///
    /// Default: none. The port is not encrypted.
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Opens a third port, for operators.
    ///
    /// Default: none.
    pub fn admin(mut self, admin: Admin) -> Self {
        self.admin = Some(admin);
        self
    }

    /// Counts requests and connections here. The admin port serves these metrics.
    ///
    /// Default: none. Nothing is counted.
    pub fn metrics(mut self, metrics: ServiceMetrics) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// Sets after how much silence an HTTP/2 connection is pinged. It is closed if it does not answer within 20 s.
    ///
    /// Default: 60 s.
    pub const fn keepalive(mut self, interval: Duration) -> Self {
        self.keepalive = interval;
        self
    }

    /// Sets after how long a gRPC connection is closed, give or take a random tenth, so that the clients of a fleet do
    /// not all connect again at the same moment. Its requests get their responses, and its client connects again,
    /// possibly to a new replica. A client that watches the health keeps its connection until it stops watching.
    ///
    /// Default: 30 minutes.
    pub const fn max_connection_age(mut self, age: Duration) -> Self {
        self.max_connection_age = age;
        self
    }

    /// Sets the maximum number of open connections of each port: keep it above the number of clients, and below the process's
    /// limit of open files. Further clients of the gRPC port wait, without an answer, until another connection is closed.
    /// Those of the HTTP port get 503, except for probes.
    ///
    /// Default: 4,096. 0 counts as 1.
    pub const fn max_connections(mut self, connections: usize) -> Self {
        self.max_connections = if connections == 0 { 1 } else { connections };
        self
    }

    /// Returns the number of open files that this server needs at most. With a lower limit of the process, connections wait
    /// without an answer.
    #[must_use]
    pub const fn max_open_files(&self) -> usize {
        let of_admin = match self.admin.is_some() {
            true => MAX_ADMIN_CONNECTIONS + ADMIN_GUESTS.max,
            false => 0,
        };
        self.max_connections.saturating_mul(2).saturating_add(HTTP_GUESTS.max + of_admin + OTHER_FILES)
    }

    /// Sets the maximum number of permits that clients of `/v1/acquire` hold in this process at the same time. Further
    /// ones get an error.
    ///
    /// Default: 10,000.
    pub const fn max_permits(mut self, permits: usize) -> Self {
        self.max_permits = permits;
        self
    }

    /// Sets a function that is called with the span of each request whose client sent a valid trace context, before the
    /// span is entered. The span has the context as its fields `trace_id`, `parent_span_id`, `trace_flags` and
    /// `tracestate`; a layer that exports spans can be given it as their parent here.
    ///
    /// Default: none.
    #[cfg(feature = "tracing")]
    pub fn on_traced_request(
        mut self,
        hook: impl Fn(&tracing::Span, &crate::TraceContext) + Send + Sync + 'static,
    ) -> Self {
        self.span_hook = SpanHook(Some(Arc::new(hook)));
        self
    }

    /// Sets the maximum size of a request in bytes, over gRPC and over HTTP.
    ///
    /// Default: 64 KiB.
    pub const fn max_message_bytes(mut self, bytes: usize) -> Self {
        self.max_message_bytes = bytes;
        self
    }

    /// Sets the maximum memory in bytes of all requests that have not arrived entirely, over gRPC and over HTTP together.
    /// Further unfinished requests fail with `RESOURCE_EXHAUSTED` and 503. One takes 16 KiB beside its body.
    ///
    /// Default: 32 MiB. Less than the largest request counts as it.
    pub const fn max_unfinished_bytes(mut self, bytes: usize) -> Self {
        self.max_unfinished_bytes = bytes;
        self
    }

    /// Sets how long the server still accepts requests after it has begun to report that it is stopping, so that
    /// clients learn of it first.
    ///
    /// Default: 1 s.
    pub const fn drain_notice(mut self, notice: Duration) -> Self {
        self.drain_notice = notice;
        self
    }

    /// Sets how long requests in flight may take after that.
    ///
    /// Default: 10 s.
    pub const fn drain(mut self, drain: Duration) -> Self {
        self.drain = drain;
        self
    }

    /// Sets whether `/readyz` reports the server as ready only while Redis decides. Set it if the failure policy is
    /// [`OnFailure::Error`](tidegate::OnFailure::Error); under all others, the server can decide without Redis.
    ///
    /// Default: false.
    pub const fn ready_needs_redis(mut self, needs_redis: bool) -> Self {
        self.needs_redis.readiness = needs_redis;
        self
    }

    /// Sets whether `/healthcheck` and the health over gRPC report the server as healthy only while Redis decides, as
    /// those of envoyproxy/ratelimit with `REDIS_HEALTH_CHECK_ACTIVE_CONNECTION`. The health over gRPC follows Redis within about a
    /// second.
    ///
    /// Default: false. A probe that restarts unhealthy processes then leaves them alone while Redis is away.
    pub const fn health_needs_redis(mut self, needs_redis: bool) -> Self {
        self.needs_redis.health = needs_redis;
        self
    }

    /// Opens the ports. Port 0 means any free port.
    ///
    /// # Errors
    ///
    /// If the settings of the [admin port](Self::admin) are not [valid](Admin::validate), or if an address cannot be
    /// listened on.
    pub async fn bind(self, grpc: SocketAddr, http: SocketAddr) -> Result<BoundServer, ServerError> {
        self.admin.as_ref().map_or(Ok(()), Admin::validate)?;
        let (grpc, grpc_addr) = listen(PortName::Grpc, grpc).await?;
        let (http, http_addr) = listen(PortName::Http, http).await?;
        let admin = match &self.admin {
            Some(admin) => Some(listen(PortName::Admin, admin.address).await?),
            None => None,
        };
        let body_memory = Arc::new(BodyMemory::new(self.max_unfinished_bytes, self.max_message_bytes));
        let (service, metrics) = (self.service.clone(), self.metrics.clone());
        let (routes, health) =
            grpc::routes(service, metrics, self.max_message_bytes, body_memory.clone(), self.max_connections)
                .await?;
        Ok(BoundServer {
            settings: self,
            body_memory,
            routes,
            health,
            grpc,
            http,
            admin,
            grpc_addr,
            http_addr,
        })
    }
}

async fn listen(port: PortName, address: SocketAddr) -> Result<(TcpListener, SocketAddr), ServerError> {
    let listener = TcpListener::bind(address).await;
    let bound = listener.and_then(|listener| listener.local_addr().map(|bound| (listener, bound)));
    bound.map_err(|error| ServerError::Listen { port, address, error })
}

/// A server whose ports are open, from [`Server::bind`].
#[derive(Debug)]
#[must_use = "a server answers nothing before `run`"]
pub struct BoundServer {
    settings: Server,
    body_memory: Arc<BodyMemory>,
    routes: Routes,
    health: GrpcHealth,
    grpc: TcpListener,
    http: TcpListener,
    admin: Option<(TcpListener, SocketAddr)>,
    grpc_addr: SocketAddr,
    http_addr: SocketAddr,
}

impl BoundServer {
    /// Returns the address of the gRPC port.
    #[must_use]
    pub const fn grpc_addr(&self) -> SocketAddr {
        self.grpc_addr
    }

    /// Returns the address of the HTTP port.
    #[must_use]
    pub const fn http_addr(&self) -> SocketAddr {
        self.http_addr
    }

    /// Returns the address of the admin port, if there is one.
    #[must_use]
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(|(_, address)| *address)
    }

    /// Serves until `stop` ends, then stops in this order:
    ///
    /// 1. The health service reports `NOT_SERVING`, and `/readyz` replies 503. Requests are still accepted for the
    ///    [notice](Server::drain_notice).
    /// 2. The ports close. Requests in flight get their responses within the [drain time](Server::drain).
    /// 3. The changes of operators end their searches, and get their audit entries. Each of their calls to Redis has the
    ///    [deadline of operators](tidegate::Builder::operator_deadline).
    /// 4. The limiter [shuts down](tidegate::Limiter::shutdown), which gives its leases back.
    ///
    /// Returns whether all requests in flight got their responses, and all changes ended, within the drain time.
    ///
    /// # Errors
    ///
    /// None at present.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<bool, ServerError> {
        let Self { settings, body_memory, routes, mut health, grpc, http, admin, grpc_addr, http_addr } =
            self;
        let Server { service, metrics, max_message_bytes, max_connections, .. } = settings.clone();
        let limiter = service.rules().limiter().clone();
        let readiness = Readiness::new(service.clone(), settings.needs_redis);
        if settings.needs_redis.health {
            // Until Redis is known to decide.
            health.stop().await;
        }
        let (close, closed) = Stop::new();
        let port = |name, listener, max_connections, admission| {
            let (metrics, stop, limiter) = (metrics.clone(), closed.clone(), limiter.clone());
            Port { name, listener, max_connections, admission, metrics, stop, limiter }
        };

        let permits = Arc::new(PermitTable::new(limiter.clone(), settings.max_permits));
        let api = HttpState {
            service: service.clone(),
            readiness: readiness.clone(),
            permits,
            max_message_bytes,
            body_memory: body_memory.clone(),
        };
        let is_loopback = http_addr.ip().to_canonical().is_loopback();
        let router = http_api::router(api, is_loopback, metrics.clone(), settings.span_hook.clone());
        let http = http1::serve(router, port("http", http, max_connections, Admission::Place(HTTP_GUESTS)));
        let connections = GrpcPort {
            routes: traced(routes.prepare().into_axum_router(), settings.span_hook.clone()),
            tls: settings.tls.clone(),
            keepalive: settings.keepalive,
            max_age: settings.max_connection_age,
            memory: body_memory,
            limiter: limiter.clone(),
            failed_handshakes: metrics.as_ref().map(|it| it.rejected_connections("grpc", "tls_handshake")),
        };
        let grpc = connections.serve(port("grpc", grpc, max_connections, Admission::Wait));
        let tracker = ChangeTracker::default();
        let admin = async {
            if let (Some(admin), Some((listener, admin_addr))) = (&settings.admin, admin) {
                let listening = Listening { grpc: grpc_addr, http: http_addr, admin: admin_addr };
                let settings = Arc::new(admin.clone());
                let state = AdminState { service, metrics: metrics.clone(), settings, listening };
                let admission = Admission::OnRequest(ADMIN_GUESTS);
                let port = port("admin", listener, MAX_ADMIN_CONNECTIONS, admission);
                http1::serve(admin::router(state, &tracker), port).await;
            }
        };
        let upkeep = async {
            match &metrics {
                Some(metrics) => metrics.run_upkeep().await,
                None => pending().await,
            }
        };
        let (followed, health_of) = (health.clone(), readiness.clone());
        let health_of_redis = async {
            if settings.needs_redis.health {
                followed.follow(&health_of).await;
            }
            pending::<Infallible>().await
        };
        // The ports end after `close`. `maybe_done` can be polled again, should they have ended before.
        let mut serving = pin!(maybe_done(async {
            tokio::select! {
                _ = async { tokio::join!(grpc, http, admin) } => {}
                never = upkeep => match never {},
                never = health_of_redis => match never {},
            }
        }));
        let notice = async {
            stop.await;
            readiness.stop();
            health.stop().await;
            sleep(settings.drain_notice).await;
            health.end_watches().await;
        };
        // Serves meanwhile: a report of the health that is under way holds what `health.stop` waits for.
        tokio::select! {
            () = &mut serving => {}
            () = notice => {}
        }
        tracker.stop();
        drop(close);
        let drained = timeout(settings.drain, async { tokio::join!(serving, tracker.finished()) }).await;
        tracker.end_searches();
        // A change goes on when its client has left: its audit entry needs the limiter.
        tracker.finished().await;
        limiter.shutdown().await;
        Ok(drained.is_ok())
    }
}
