//! The services: each replies "hello", and receives 64 requests at a time.

use std::time::Duration;

use actix_web::dev::Service as _;
use axum::Router;
use axum::body::Body;
use clap::ValueEnum;
use futures_util::future::join_all;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use tidegate::{Limiter, Quota, Rate};
use tidegate_http::{GateRule, Key, RateLimitLayer};
use tidegate_rules::Rules;
use tower::Service as _;

use crate::Failure;
use crate::count::{Count, Counter};

/// The header that holds the key.
const HEADER: &str = "x-api-key";
const KEYS: u64 = 100_000;
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
    OneGate,
    TwoGates,
    RulesFile,
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
    /// All limits of which some requests are checked.
    pub(crate) const SOME: [Self; 3] = [Self::OneGate, Self::TwoGates, Self::RulesFile];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::OneGate => "one-gate",
            Self::TwoGates => "two-gates",
            Self::RulesFile => "rules-file",
        }
    }

    fn layer(self, limiter: &Limiter) -> Result<Option<RateLimitLayer>, Failure> {
        let gate = |name: &str| {
            limiter.gate(name, Quota::token_bucket(60_000, Rate::new(1, Duration::from_millis(1))))
        };
        let by_key = || Key::header(HEADER);
        Ok(Some(match self {
            Self::None => return Ok(None),
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
    pub(crate) const ALL: [Self; 2] = [Self::Memory, Self::Redis];

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

/// Sends requests to a service, and returns the mean allocations of one.
pub(crate) fn count(case: Case, requests: u64, redis: &str) -> Result<Count, Failure> {
    let layer = || case.limit.layer(&case.store.limiter(redis)?);
    match case.framework {
        Framework::Axum => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let hello = Router::new().route("/", axum::routing::get(async || "hello"));
                let mut app = match layer()? {
                    Some(layer) => hello.layer(layer),
                    None => hello,
                };
                count_requests(requests, |key| {
                    let request = Request::get("/").header("host", "bench").header(HEADER, key);
                    let response = request.body(Body::empty()).map(|request| app.call(request));
                    async move {
                        let response = response?.await?;
                        let status = response.status();
                        response.into_body().collect().await?;
                        Ok(status)
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
                            let status = StatusCode::from_u16(response.status().as_u16())?;
                            let read = body::to_bytes(response.into_body()).await;
                            read.map(|_| status).map_err(|_| "the body failed".into())
                        }
                    })
                    .await
                }};
            }
            match layer()? {
                Some(layer) => count_service!(app.wrap(layer)),
                None => count_service!(app),
            }
        }),
    }
}

async fn count_requests<F>(requests: u64, mut send: impl FnMut(String) -> F) -> Result<Count, Failure>
where
    F: Future<Output = Result<StatusCode, Failure>>,
{
    let mut sent = 0;
    let mut send_batches = async |requests: u64| {
        for _ in 0..requests.div_ceil(CONCURRENT) {
            let batch: Vec<_> = (0..CONCURRENT)
                .map(|_| {
                    sent += 1;
                    send(format!("user-{}", sent % KEYS))
                })
                .collect();
            for status in join_all(batch).await {
                let status = status?;
                if status != StatusCode::OK {
                    return Err(Failure::from(format!("the service responded with {status}")));
                }
            }
        }
        Ok(())
    };
    send_batches(WARM).await?;
    let counter = Counter::start();
    send_batches(requests).await?;
    Ok(counter.per_request(requests.div_ceil(CONCURRENT) * CONCURRENT))
}
