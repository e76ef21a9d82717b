//! The services: each replies "hello", and receives 64 requests at a time.

use std::time::Duration;

use actix_web::dev::Service as _;
use axum::Router;
use axum::body::Body;
use clap::ValueEnum;
use futures_util::future::join_all;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use http_body_util::BodyExt;
use tidegate::{Limiter, Quota, Rate};
use tidegate_http::{GateRule, Key, RateLimitLayer};
use tidegate_rules::Rules;
use tower::Service as _;

use crate::Failure;
use crate::count::{Count, Counter};
use crate::peers::{self, HEADER};

const KEYS: u64 = 100_000;
/// The burst, and the time in which one more unit becomes free.
const LIMIT: peers::Limit = (60_000, Duration::from_millis(1));
/// Requests in progress at a time. All of a batch wait in one call to Redis.
const CONCURRENT: u64 = 64;
/// Requests before the counted ones: caches fill, and the connection to Redis is made.
const WARM: u64 = 1_024;

const RULES: &str = "
domain: api
rate_limits:
  - actions: [{ request_headers: { header_name: x-api-key, descriptor_key: api_key } }]
descriptors:
  - { key: api_key, rate_limit: { unit: minute, requests_per_unit: 60000 } }
";

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Framework {
    Axum,
    Actix,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Limit {
    None,
    /// A layer that does nothing: what axum itself adds for any layer.
    Empty,
    OneGate,
    TwoGates,
    RulesFile,
    TowerGovernor,
    TowerRateLimitRedis,
    TowerRateLimiter,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Store {
    Memory,
    Redis,
}

/// One service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) framework: Framework,
    pub(crate) limit: Limit,
    pub(crate) store: Store,
}

impl Framework {
    pub(crate) const ALL: [Self; 2] = [Self::Axum, Self::Actix];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Axum => "axum",
            Self::Actix => "actix",
        }
    }
}

impl Limit {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Empty => "empty",
            Self::OneGate => "one-gate",
            Self::TwoGates => "two-gates",
            Self::RulesFile => "rules-file",
            Self::TowerGovernor => "tower-governor",
            Self::TowerRateLimitRedis => "tower-rate-limit-redis",
            Self::TowerRateLimiter => "tower-rate-limiter",
        }
    }

    fn layer(self, limiter: &Limiter) -> Result<Option<RateLimitLayer>, Failure> {
        let (burst, period) = LIMIT;
        let gate = |name: &str| limiter.gate(name, Quota::token_bucket(burst.into(), Rate::new(1, period)));
        let by_key = || Key::header(HEADER);
        Ok(Some(match self {
            Self::None
            | Self::Empty
            | Self::TowerGovernor
            | Self::TowerRateLimitRedis
            | Self::TowerRateLimiter => return Ok(None),
            Self::OneGate => RateLimitLayer::new(gate("http"), by_key()),
            Self::TwoGates => RateLimitLayer::of([
                GateRule::new(gate("http"), by_key()),
                GateRule::new(gate("burst"), by_key()),
            ]),
            Self::RulesFile => {
                RateLimitLayer::with_rules(Rules::parse("api.yaml", RULES)?.bind(limiter), "api")?
            }
        }))
    }
}

impl Store {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Redis => "redis",
        }
    }

    fn limiter(self, redis: &str) -> Result<Limiter, Failure> {
        Ok(match self {
            Self::Memory => Limiter::in_memory(),
            // Under valgrind a call takes longer than the default deadline.
            Self::Redis => Limiter::builder().url(redis).deadline(Duration::from_secs(10)).build()?,
        })
    }
}

impl Case {
    /// What is counted for a framework: first the service without a limit.
    pub(crate) fn all(framework: Framework) -> Vec<Self> {
        let case = |(limit, store)| Self { framework, limit, store };
        let limits = [Limit::OneGate, Limit::TwoGates, Limit::RulesFile];
        let mut cases = vec![(Limit::None, Store::Memory)];
        if matches!(framework, Framework::Axum) {
            cases.push((Limit::Empty, Store::Memory));
        }
        cases.extend(limits.map(|limit| (limit, Store::Memory)));
        cases.extend(limits.map(|limit| (limit, Store::Redis)));
        if matches!(framework, Framework::Axum) {
            cases.push((Limit::TowerGovernor, Store::Memory));
            cases.push((Limit::TowerRateLimitRedis, Store::Redis));
            cases.push((Limit::TowerRateLimiter, Store::Redis));
        }
        cases.into_iter().map(case).collect()
    }

    fn layer(self, redis: &str) -> Result<Option<RateLimitLayer>, Failure> {
        self.limit.layer(&self.store.limiter(redis)?)
    }

    async fn axum(self, redis: &str) -> Result<Router, Failure> {
        let hello = Router::new().route("/", axum::routing::get(async || "hello"));
        let app = match self.limit {
            Limit::None => hello,
            Limit::Empty => hello.layer(tower::layer::util::Identity::new()),
            Limit::TowerGovernor => peers::tower_governor(hello, LIMIT)?,
            Limit::TowerRateLimitRedis => peers::tower_rate_limit_redis(hello, LIMIT, redis).await?,
            Limit::TowerRateLimiter => peers::tower_rate_limiter(hello, LIMIT, redis).await?,
            Limit::OneGate | Limit::TwoGates | Limit::RulesFile => match self.layer(redis)? {
                Some(layer) => hello.layer(layer),
                None => hello,
            },
        };
        // Makes the routes, as `axum::serve` does. Without a state, each request would make its route anew.
        Ok(app.with_state(()))
    }
}

/// Sends requests to a service. Returns the mean allocations of one, and the headers of the last response.
pub(crate) fn count(case: Case, requests: u64, redis: &str) -> Result<(Count, HeaderMap), Failure> {
    match case.framework {
        Framework::Axum => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut app = case.axum(redis).await?;
                count_requests(requests, |key| {
                    let request = Request::get("/").header("host", "bench").header(HEADER, key);
                    let response = request.body(Body::empty()).map(|request| app.call(request));
                    async move {
                        let (head, body) = response?.await?.into_parts();
                        body.collect().await?;
                        Ok((head.status, head.headers))
                    }
                })
                .await
            })
        }
        Framework::Actix => actix_web::rt::System::new().block_on(async {
            use actix_web::{App, body, test, web};
            let hello = web::get().to(async || "hello");
            let app = App::new().route("/", hello);
            // The middleware changes the type of the service.
            macro_rules! count_service {
                ($app:expr) => {{
                    let app = test::init_service($app).await;
                    count_requests(requests, |key| {
                        let request = test::TestRequest::get().uri("/").insert_header(("host", "bench"));
                        let response = app.call(request.insert_header((HEADER, key)).to_request());
                        async move {
                            let response = response.await.map_err(|error| error.to_string())?;
                            let head = (response.status(), response.headers().clone());
                            body::to_bytes(response.into_body()).await.map_err(|_| "the body failed")?;
                            Ok(head)
                        }
                    })
                    .await
                    .map(|(count, headers)| (count, of_actix(&headers)))
                }};
            }
            match case.layer(redis)? {
                Some(layer) => count_service!(app.wrap(layer)),
                None => count_service!(app),
            }
        }),
    }
}

/// Returns the headers as those of the other version of `http`.
fn of_actix(headers: &actix_web::http::header::HeaderMap) -> HeaderMap {
    let header = |name: &str, value: &[u8]| {
        Some((HeaderName::try_from(name).ok()?, HeaderValue::from_bytes(value).ok()?))
    };
    headers.iter().filter_map(|(name, value)| header(name.as_str(), value.as_bytes())).collect()
}

async fn count_requests<F, Status, Headers>(
    requests: u64,
    mut send: impl FnMut(String) -> F,
) -> Result<(Count, Headers), Failure>
where
    F: Future<Output = Result<(Status, Headers), Failure>>,
    Status: Into<u16>,
{
    let mut sent = 0;
    let mut last = None;
    let mut send_batches = async |requests: u64| {
        for _ in 0..requests.div_ceil(CONCURRENT) {
            let batch: Vec<_> = (0..CONCURRENT)
                .map(|_| {
                    sent += 1;
                    send(format!("user-{}", sent % KEYS))
                })
                .collect();
            for response in join_all(batch).await {
                let (status, headers) = response?;
                let status = status.into();
                if status != StatusCode::OK.as_u16() {
                    return Err(Failure::from(format!("the service responded with {status}")));
                }
                last = Some(headers);
            }
        }
        Ok(())
    };
    send_batches(WARM).await?;
    let counter = Counter::start();
    send_batches(requests).await?;
    let count = counter.per_request(requests.div_ceil(CONCURRENT) * CONCURRENT);
    Ok((count, last.ok_or("no response")?))
}
