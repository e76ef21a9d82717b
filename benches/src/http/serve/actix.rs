//! The services of actix-web.

use std::net::TcpListener;

use actix_extensible_rate_limit::RateLimiter;
use actix_extensible_rate_limit::backend::memory::InMemoryBackend;
use actix_extensible_rate_limit::backend::redis::RedisBackend;
use actix_extensible_rate_limit::backend::{SimpleInputFunctionBuilder, SimpleInputFuture};
#[cfg(feature = "actix-governor")]
use actix_governor::{Governor, GovernorConfigBuilder, KeyExtractor, SimpleKeyExtractionError};
use actix_web::dev::{Server, ServiceRequest};
use actix_web::{App, HttpServer, error, web};

use super::{HEADER, Pattern, Service};
use crate::Failure;

/// Starts the application on a worker for each core.
pub(super) async fn start(
    listener: TcpListener,
    service: Service,
    pattern: Pattern,
    redis: &str,
) -> Result<Server, Failure> {
    let hello = || App::new().route("/", web::get().to(async || "hello"));
    let server = match service {
        Service::ActixTidegate => {
            let limit = super::tidegate(pattern, redis)?;
            HttpServer::new(move || hello().wrap(limit.clone())).listen(listener)?.run()
        }
        #[cfg(not(feature = "actix-governor"))]
        Service::ActixGovernor => return Err("built without the feature `actix-governor`".into()),
        #[cfg(feature = "actix-governor")]
        Service::ActixGovernor => {
            let (burst, period) = pattern.limit();
            let mut builder = GovernorConfigBuilder::default();
            builder.period(period).burst_size(burst.into());
            let config =
                builder.key_extractor(ByHeader).finish().ok_or("actix-governor rejects the limit")?;
            HttpServer::new(move || hello().wrap(Governor::new(&config))).listen(listener)?.run()
        }
        Service::ActixExtensibleMemory => {
            let backend = InMemoryBackend::builder().build();
            let limit = move || RateLimiter::builder(backend.clone(), input(pattern)).add_headers().build();
            HttpServer::new(move || hello().wrap(limit())).listen(listener)?.run()
        }
        Service::ActixExtensibleRedis => {
            let client = redis_0_26::Client::open(redis)?;
            let backend = RedisBackend::builder(client.get_connection_manager().await?).build();
            let limit = move || RateLimiter::builder(backend.clone(), input(pattern)).add_headers().build();
            HttpServer::new(move || hello().wrap(limit())).listen(listener)?.run()
        }
        Service::ActixLimitation => {
            let (limit, window) = pattern.window();
            let mut builder = actix_limitation::Limiter::builder(redis);
            builder.key_by(|request| key_of(request, "limitation")).limit(limit.into()).period(window);
            let limiter = web::Data::new(builder.build().map_err(|error| error.to_string())?);
            let limit = actix_limitation::RateLimiter::default;
            HttpServer::new(move || hello().wrap(limit()).app_data(limiter.clone())).listen(listener)?.run()
        }
        _ => HttpServer::new(hello).listen(listener)?.run(),
    };
    Ok(server)
}

/// Reads the key from the header. Both peers on Redis use it as the Redis key, so the prefix keeps their counters apart.
fn key_of(request: &ServiceRequest, prefix: &str) -> Option<String> {
    let key = request.headers().get(HEADER)?.to_str().ok()?;
    Some(format!("{prefix}:{key}"))
}

fn input(pattern: Pattern) -> impl Fn(&ServiceRequest) -> SimpleInputFuture + 'static {
    let (limit, window) = pattern.window();
    let key = |request: &ServiceRequest| {
        key_of(request, "extensible").ok_or_else(|| error::ErrorBadRequest("no key"))
    };
    SimpleInputFunctionBuilder::new(window, limit.into()).custom_fn(key).build()
}

/// Reads the key from the header.
#[cfg(feature = "actix-governor")]
#[derive(Clone, Debug)]
struct ByHeader;

#[cfg(feature = "actix-governor")]
impl KeyExtractor for ByHeader {
    type Key = String;
    type KeyExtractionError = SimpleKeyExtractionError<&'static str>;

    fn extract(&self, request: &ServiceRequest) -> Result<String, Self::KeyExtractionError> {
        let key = request.headers().get(HEADER).and_then(|key| key.to_str().ok());
        key.map(ToOwned::to_owned).ok_or_else(|| SimpleKeyExtractionError::new("no key"))
    }
}
