//! The service over gRPC, beside health and reflection.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic::{Code, Request, Response, Status};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::body::BodyMemory;
use crate::grpc_errors::CountedErrors;
use crate::grpc_streams::{BoundedStreams, MAX_SILENCE};
use crate::metrics::ServiceMetrics;
use crate::metrics::requests::GrpcRequests;
use crate::origin;
use crate::proto::DESCRIPTORS;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService as Protocol, RateLimitServiceServer,
};
use crate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::readiness::Readiness;
use crate::request_body::WholeMessage;
use crate::service::RateLimitService;
use crate::service_error::ServiceError;

/// The names under which the health service knows this one: the server as a whole, the service of the protocol, and
/// the name that Envoy's service uses.
const HEALTH_NAMES: [&str; 3] =
    ["", <RateLimitServiceServer<GrpcService> as NamedService>::NAME, "ratelimit"];

/// The maximum size of a request for the health or reflection, which has the name of a service, and the memory of all
/// unfinished ones for the health.
const MAX_CHECK_BYTES: usize = 1 << 10;
const UNFINISHED_CHECKS_BYTES: usize = 1 << 20;
/// The time between two looks at Redis, for the health.
const HEALTH_INTERVAL: Duration = Duration::from_millis(500);

struct GrpcService {
    service: RateLimitService,
    /// Counts the requests that succeed; [`CountedErrors`] counts the others.
    requests: Option<Arc<GrpcRequests>>,
}

#[tonic::async_trait]
impl Protocol for GrpcService {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let began = Instant::now();
        // Over TLS, a script can send any bytes of HTTP/2 as a body.
        if origin::is_sent_by_page(request.metadata().as_ref()) {
            return Err(Status::permission_denied("pages in a browser cannot use this port"));
        }
        let response = self.service.decide(request.get_ref()).await;
        if let (Some(requests), Ok(response)) = (&self.requests, &response) {
            requests.answered(response.overall_code().as_str_name(), began);
        }
        response.map(Response::new).map_err(|error| {
            let mut status = Status::new(code(&error), error.to_string());
            status.set_source(Arc::new(error));
            status
        })
    }
}

fn code(error: &ServiceError) -> Code {
    match error {
        ServiceError::Invalid(_) => Code::InvalidArgument,
        ServiceError::Limiter(error) if error.is_config() => Code::FailedPrecondition,
        ServiceError::Limiter(error) if error.is_unavailable() || error.is_shut_down() => Code::Unavailable,
        ServiceError::Limiter(_) => Code::Internal,
    }
}

/// The health that the gRPC port reports.
#[derive(Clone, Debug)]
pub(crate) struct GrpcHealth(HealthReporter);

impl GrpcHealth {
    /// Reports the health of the server, until it stops.
    pub(crate) async fn follow(&self, readiness: &Readiness) {
        let mut reported = None;
        loop {
            let status = match readiness.check_health().await {
                _ if readiness.is_stopping() => return,
                Ok(()) => ServingStatus::Serving,
                Err(_) => ServingStatus::NotServing,
            };
            // Clients that watch get each report.
            if reported != Some(status) {
                self.report(status).await;
                reported = Some(status);
                // The end may have been reported meanwhile, and overwritten.
                if readiness.is_stopping() {
                    return self.stop().await;
                }
            }
            sleep(HEALTH_INTERVAL).await;
        }
    }

    /// Reports `NOT_SERVING`, also to clients that watch.
    pub(crate) async fn stop(&self) {
        self.report(ServingStatus::NotServing).await;
    }

    async fn report(&self, status: ServingStatus) {
        for name in HEALTH_NAMES {
            self.0.set_service_status(name, status).await;
        }
    }

    /// Ends the streams of clients that watch: their connections could not be closed otherwise.
    pub(crate) async fn end_watches(&mut self) {
        for name in HEALTH_NAMES {
            self.0.clear_service_status(name).await;
        }
    }
}

/// Returns the services of the gRPC port. `max_streams`: those of health and reflection.
///
/// # Errors
///
/// If the descriptors of the build are broken.
pub(crate) async fn routes(
    service: RateLimitService,
    metrics: Option<ServiceMetrics>,
    max_message_bytes: usize,
    memory: Arc<BodyMemory>,
    max_streams: usize,
) -> Result<(Routes, GrpcHealth), tonic_reflection::server::Error> {
    let (reporter, health) = tonic_health::server::health_reporter();
    for name in HEALTH_NAMES {
        reporter.set_service_status(name, ServingStatus::Serving).await;
    }
    let builder = || {
        let builder = tonic_reflection::server::Builder::configure();
        let builder = builder.register_encoded_file_descriptor_set(DESCRIPTORS);
        builder.register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let requests = metrics.as_ref().map(|metrics| Arc::new(GrpcRequests::new(metrics)));
    let service = RateLimitServiceServer::new(GrpcService { service, requests: requests.clone() })
        .max_decoding_message_size(max_message_bytes);
    let free = Arc::new(Semaphore::new(max_streams.min(Semaphore::MAX_PERMITS)));
    let service = WholeMessage { service, max_bytes: max_message_bytes, memory };
    // A memory of its own, so that requests that do not end keep no health check out.
    let memory = Arc::new(BodyMemory::new(UNFINISHED_CHECKS_BYTES, MAX_CHECK_BYTES));
    let health = WholeMessage { service: health, max_bytes: MAX_CHECK_BYTES, memory };
    let reflection = builder().build_v1()?.max_decoding_message_size(MAX_CHECK_BYTES);
    let reflection_alpha = builder().build_v1alpha()?.max_decoding_message_size(MAX_CHECK_BYTES);
    let routes = Routes::new(CountedErrors { service, requests })
        .add_service(BoundedStreams { service: health, free: free.clone(), max_silence: None })
        .add_service(BoundedStreams {
            service: reflection,
            free: free.clone(),
            max_silence: Some(MAX_SILENCE),
        })
        .add_service(BoundedStreams { service: reflection_alpha, free, max_silence: Some(MAX_SILENCE) });
    Ok((routes, GrpcHealth(reporter)))
}
