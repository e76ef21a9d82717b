//! Clients of a running service that hold one connection each, over gRPC and over HTTP, without reconnects or retries:
//! each outcome is counted.

use http::header::CONTENT_TYPE;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tidegate_server::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tidegate_server::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tidegate_server::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tidegate_server::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tokio::net::TcpStream;

/// The protocol of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Grpc,
    Http,
}

/// An open connection.
#[derive(Clone)]
pub(crate) enum Connection {
    Grpc(String, http2::SendRequest<Full<Bytes>>),
    Http(String, std::sync::Arc<tokio::sync::Mutex<http1::SendRequest<Full<Bytes>>>>),
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    Allowed,
    Denied,
    /// The connection was closed before the request was sent, or the server declared that it has not processed it.
    Refused,
    /// The client cannot know whether the server has processed it.
    Unanswered,
}

fn request(user: &str, hits: u64) -> RateLimitRequest {
    let entries = vec![Entry { key: "user".to_owned(), value: user.to_owned() }];
    let descriptor = RateLimitDescriptor { entries, hits_addend: Some(hits), ..Default::default() };
    RateLimitRequest { domain: "d".to_owned(), descriptors: vec![descriptor], ..Default::default() }
}

impl Connection {
    pub(crate) async fn open(protocol: Protocol, address: &str) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (io, address) = (TokioIo::new(stream), address.to_owned());
        Ok(match protocol {
            Protocol::Grpc => {
                let handshake = http2::handshake(TokioExecutor::new(), io).await;
                let (sender, connection) = handshake.map_err(std::io::Error::other)?;
                tokio::spawn(connection);
                Self::Grpc(address, sender)
            }
            Protocol::Http => {
                let (sender, connection) = http1::handshake(io).await.map_err(std::io::Error::other)?;
                tokio::spawn(connection);
                Self::Http(address, std::sync::Arc::new(sender.into()))
            }
        })
    }

    /// Charges a user.
    pub(crate) async fn ask(&self, user: &str) -> Outcome {
        match self.send(user, 1).await {
            Ok(response) if response.overall_code() == Code::Ok => Outcome::Allowed,
            Ok(_) => Outcome::Denied,
            Err(outcome) => outcome,
        }
    }

    /// Returns the units that a user has left. Only over gRPC.
    pub(crate) async fn remaining(&self, user: &str) -> u32 {
        self.send(user, 0).await.unwrap().statuses[0].limit_remaining
    }

    /// Returns whether the next request needs another connection.
    pub(crate) async fn is_closed(&self) -> bool {
        match self {
            Self::Grpc(_, sender) => sender.is_closed(),
            // An error is the end of the connection.
            Self::Http(_, sender) => sender.lock().await.ready().await.is_err(),
        }
    }

    async fn send(&self, user: &str, hits: u64) -> Result<RateLimitResponse, Outcome> {
        match self {
            Self::Grpc(address, sender) => {
                let message = request(user, hits).encode_to_vec();
                let length = u32::try_from(message.len()).unwrap().to_be_bytes();
                let body = [&[0][..], &length, &message].concat();
                let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
                let request = http::Request::post(format!("http://{address}{path}"))
                    .header(CONTENT_TYPE, "application/grpc")
                    .header("te", "trailers");
                let request = request.body(Full::from(body)).unwrap();
                let response = sender.clone().send_request(request).await.map_err(outcome)?;
                let body = response.into_body().collect().await.map_err(outcome)?;
                let status = body.trailers().and_then(|trailers| trailers.get("grpc-status"));
                assert_eq!(status.map(|status| status.as_bytes()), Some(&b"0"[..]));
                Ok(RateLimitResponse::decode(body.to_bytes().slice(5..)).unwrap())
            }
            Self::Http(address, sender) => {
                let entries = format!(r#"[{{"key": "user", "value": "{user}"}}]"#);
                let descriptor = format!(r#"{{"entries": {entries}, "hitsAddend": "{hits}"}}"#);
                let body = format!(r#"{{"domain": "d", "descriptors": [{descriptor}]}}"#);
                let request = http::Request::post("/json").header("host", address.as_str());
                let request = request.body(Full::from(body)).unwrap();
                let response = sender.lock().await.send_request(request).await.map_err(outcome)?;
                let code = match response.status().as_u16() {
                    200 => Code::Ok,
                    429 => Code::OverLimit,
                    other => panic!("status {other}"),
                };
                response.into_body().collect().await.map_err(outcome)?;
                Ok(RateLimitResponse { overall_code: code.into(), ..Default::default() })
            }
        }
    }
}

/// Classifies an error of a request.
fn outcome(error: hyper::Error) -> Outcome {
    let cause = std::error::Error::source(&error).and_then(|cause| cause.downcast_ref::<h2::Error>());
    // After a GOAWAY, the streams above its last one were not processed; so was a stream that is refused.
    let is_declared = cause.is_some_and(|cause| {
        let reason = cause.reason();
        reason == Some(h2::Reason::REFUSED_STREAM)
            || (cause.is_go_away() && cause.is_remote() && reason == Some(h2::Reason::NO_ERROR))
    });
    if error.is_canceled() || is_declared { Outcome::Refused } else { Outcome::Unanswered }
}
