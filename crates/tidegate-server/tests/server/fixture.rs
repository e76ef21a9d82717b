//! A service on rules, its server, and requests.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate::Limiter;
use tidegate_rules::Rules;
use tidegate_server::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tidegate_server::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use tidegate_server::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tidegate_server::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tidegate_server::{RateLimitService, Server, ServerError};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};

/// Any free port.
pub const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// A service on these rules, which count in memory.
pub fn in_memory(rules: &str) -> RateLimitService {
    on(rules, &Limiter::in_memory())
}

/// A service on these rules, which count with this limiter.
pub fn on(rules: &str, limiter: &Limiter) -> RateLimitService {
    RateLimitService::new(Rules::parse("test.yaml", rules).unwrap().bind(limiter))
}

pub type Client = RateLimitServiceClient<Channel>;

pub async fn client(port: u16) -> Client {
    let endpoint = Endpoint::try_from(format!("http://127.0.0.1:{port}")).unwrap();
    RateLimitServiceClient::new(endpoint.connect().await.unwrap())
}

/// A server that runs in this process.
pub struct Running {
    pub grpc_addr: SocketAddr,
    pub http_addr: SocketAddr,
    pub admin_addr: Option<SocketAddr>,
    stop: oneshot::Sender<()>,
    server: JoinHandle<Result<bool, ServerError>>,
}

impl Running {
    pub async fn start(service: RateLimitService) -> Self {
        Self::of(Server::new(service).drain_notice(Duration::ZERO)).await
    }

    pub async fn of(server: Server) -> Self {
        Self::at(server, ANY).await
    }

    pub async fn at(server: Server, grpc: SocketAddr) -> Self {
        let bound = server.bind(grpc, ANY).await.unwrap();
        let (grpc_addr, http_addr) = (bound.grpc_addr(), bound.http_addr());
        let admin_addr = bound.admin_addr();
        let (stop, stopped) = oneshot::channel();
        let server = tokio::spawn(bound.run(async { drop(stopped.await) }));
        Self { grpc_addr, http_addr, admin_addr, stop, server }
    }

    pub async fn client(&self) -> Client {
        client(self.grpc_addr.port()).await
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.http_addr)
    }

    /// Returns the address of a page of the admin port.
    pub fn admin_url(&self, path: &str) -> String {
        format!("http://{}{path}", self.admin_addr.unwrap())
    }

    /// Stops the server. Returns whether all requests got their responses.
    pub async fn stop(self) -> bool {
        drop(self.stop);
        self.server.await.unwrap().unwrap()
    }
}

pub fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).to_owned(), value: (*value).to_owned() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..Default::default() }
}

pub fn with_hits(descriptor: RateLimitDescriptor, hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(hits), ..descriptor }
}

pub fn given_back(descriptor: RateLimitDescriptor) -> RateLimitDescriptor {
    RateLimitDescriptor { is_negative_hits: true, ..descriptor }
}

pub fn with_limit(descriptor: RateLimitDescriptor, requests_per_unit: u32, unit: i32) -> RateLimitDescriptor {
    RateLimitDescriptor { limit: Some(RateLimitOverride { requests_per_unit, unit }), ..descriptor }
}

pub fn request(descriptors: impl IntoIterator<Item = RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest {
        domain: "d".to_owned(),
        descriptors: descriptors.into_iter().collect(),
        ..Default::default()
    }
}
