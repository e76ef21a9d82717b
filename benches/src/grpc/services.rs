//! The services: processes of this program that speak Envoy's rate-limit protocol.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::LazyLock;

use clap::ValueEnum;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Script};
use tidegate::{Limiter, OnFailure};
use tidegate_rules::Rules;
use tidegate_server::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use tidegate_server::proto::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use tidegate_server::proto::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService as Protocol, RateLimitServiceServer,
};
use tidegate_server::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tidegate_server::{RateLimitService, Server};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use crate::Failure;
use crate::subjects::DEADLINE;

/// The domain, and the key of its only rule.
pub(super) const DOMAIN: &str = "bench";
pub(super) const KEY: &str = "user";
/// Above the requests of any run: a denial would be a mistake.
const LIMIT: u32 = 4_000_000_000;
const WINDOW_S: u32 = 3_600;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Service {
    /// Replies OK to every request.
    Bare,
    /// Sends a script for each request, over one connection.
    Naive,
    Tidegate,
    TidegateLeased,
}

impl Service {
    pub(super) const ALL: [Self; 4] = [Self::Bare, Self::Naive, Self::Tidegate, Self::TidegateLeased];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Naive => "naive",
            Self::Tidegate => "tidegate",
            Self::TidegateLeased => "tidegate-leased",
        }
    }

    pub(super) const fn note(self) -> &'static str {
        match self {
            Self::Bare => "a tonic service that replies OK",
            Self::Naive => "a tonic service that sends a script for each request, over one connection",
            Self::Tidegate => "tidegate-server, a fixed window in Redis",
            Self::TidegateLeased => "the same with leases of at most 10,000 units, held for a minute",
        }
    }

    pub(super) const fn is_ours(self) -> bool {
        matches!(self, Self::Tidegate | Self::TidegateLeased)
    }
}

/// Prints its port, then serves until its standard input is closed. All its keys in Redis begin with `prefix`.
pub(crate) async fn serve(service: Service, prefix: &str, redis: &str) -> Result<(), Failure> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    match service {
        Service::Bare => serve_by_hand(any, Bare).await,
        Service::Naive => serve_by_hand(any, Naive::connect(prefix, redis).await?).await,
        Service::Tidegate | Service::TidegateLeased => {
            let lease = match service {
                Service::TidegateLeased => ", lease: { max_units: 10000, hold: 60s }",
                _ => "",
            };
            let limit = format!("unit: hour, requests_per_unit: {LIMIT}{lease}");
            let rules =
                format!("domain: {DOMAIN}\ndescriptors: [{{ key: {KEY}, rate_limit: {{ {limit} }} }}]\n");
            let namespace = format!("{prefix}-{}", service.name());
            let builder = Limiter::builder().url(redis).namespace(&namespace);
            let limiter = builder.deadline(DEADLINE).on_failure(OnFailure::Error).build()?;
            limiter.ready().await?;
            let rules = Rules::parse("bench.yaml", &rules)?.bind(&limiter);
            let server = Server::new(RateLimitService::new(rules)).bind(any, any).await?;
            println!("{}", server.grpc_addr().port());
            server.run(closed()).await?;
            Ok(())
        }
    }
}

/// Serves a service that is written with tonic alone.
async fn serve_by_hand(address: SocketAddr, service: impl Protocol) -> Result<(), Failure> {
    let listener = TcpListener::bind(address).await?;
    println!("{}", listener.local_addr()?.port());
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let router = tonic::transport::Server::builder().add_service(RateLimitServiceServer::new(service));
    Ok(router.serve_with_incoming_shutdown(incoming, closed()).await?)
}

/// Ends when standard input is closed.
async fn closed() {
    let _ = tokio::io::stdin().read_u8().await;
}

#[derive(Debug)]
struct Bare;

#[tonic::async_trait]
impl Protocol for Bare {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let mut status = DescriptorStatus::default();
        status.set_code(Code::Ok);
        let statuses = vec![status; request.get_ref().descriptors.len()];
        let mut response = RateLimitResponse { statuses, ..Default::default() };
        response.set_overall_code(Code::Ok);
        Ok(Response::new(response))
    }
}

static FIXED_WINDOW: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("fixed_window.lua")));

/// A service as it is written by hand. Its response has the same fields as tidegate's.
struct Naive {
    prefix: String,
    connection: MultiplexedConnection,
}

impl Naive {
    async fn connect(prefix: &str, redis: &str) -> Result<Self, Failure> {
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(DEADLINE));
        let client = redis::Client::open(redis)?;
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(Self { prefix: prefix.to_owned(), connection })
    }

    async fn decide(&self, request: &RateLimitRequest) -> Result<RateLimitResponse, redis::RedisError> {
        let mut response = RateLimitResponse::default();
        let mut overall = Code::Ok;
        for descriptor in &request.descriptors {
            let mut key = format!("{}-naive:{}", self.prefix, request.domain);
            for entry in &descriptor.entries {
                key = key + ":" + &entry.key + ":" + &entry.value;
            }
            let mut connection = self.connection.clone();
            let hits = request.hits_addend.max(1);
            let (used, left): (u64, u32) =
                FIXED_WINDOW.key(key).arg(hits).arg(WINDOW_S).invoke_async(&mut connection).await?;
            let mut limit = RateLimit { requests_per_unit: LIMIT, ..Default::default() };
            limit.set_unit(Unit::Hour);
            let code = if used <= LIMIT.into() { Code::Ok } else { Code::OverLimit };
            if code == Code::OverLimit {
                overall = code;
            }
            let limit_remaining = u64::from(LIMIT).saturating_sub(used).try_into().unwrap_or(u32::MAX);
            let mut status =
                DescriptorStatus { current_limit: Some(limit), limit_remaining, ..Default::default() };
            status.duration_until_reset = Some(prost_types::Duration { seconds: left.into(), nanos: 0 });
            status.set_code(code);
            response.statuses.push(status);
        }
        response.set_overall_code(overall);
        Ok(response)
    }
}

#[tonic::async_trait]
impl Protocol for Naive {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let response = self.decide(request.get_ref()).await;
        response.map(Response::new).map_err(|error| Status::unavailable(error.to_string()))
    }
}
