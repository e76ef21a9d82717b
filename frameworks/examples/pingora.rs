//! A proxy with pingora: 10 requests an hour for each client address, in front of the service at `UPSTREAM`. All
//! instances share the limit through one Redis. `PROXIES` lists the load balancers in front of this proxy, whose
//! `X-Forwarded-For` is read: networks or addresses, separated by commas. `CONCURRENT` is the most requests of an address
//! at a time, without a limit by default.
//!
//! ```console
//! $ TIDEGATE_REDIS_URL=redis://127.0.0.1:6379 LISTEN=127.0.0.1:3000 UPSTREAM=127.0.0.1:8080 PROXIES=10.0.0.0/8 cargo run --manifest-path frameworks/Cargo.toml --example pingora
//! ```
use std::env::var;
use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use pingora::http::ResponseHeader;
use pingora::proxy::{ProxyHttp, Session, http_proxy_service};
use pingora::server::Server;
use pingora::upstreams::peer::HttpPeer;
use tidegate::{Limiter, Quota};
use tidegate_http::http::{Method, Response, StatusCode, header, response};
use tidegate_http::{AdmittedRequest, Charge, ClientIp, Key, PeerAddr, RateLimitLayer, RequestPermits};

const QUOTA: Quota = Quota::fixed_window(10, Duration::from_secs(3_600));

struct Proxy {
    limit: RateLimitLayer,
    upstream: SocketAddr,
}

/// A request in the proxy. It ends after the response has been sent or the client has left.
#[derive(Default)]
struct Context {
    /// The admitted request, until its response.
    admitted: Option<AdmittedRequest>,
    /// Its permits at in-flight limits, until its end.
    permits: RequestPermits,
}

#[async_trait]
impl ProxyHttp for Proxy {
    type CTX = Context;

    fn new_ctx(&self) -> Context {
        Context::default()
    }

    /// Admits the request, or rejects it without calling the upstream.
    async fn request_filter(&self, session: &mut Session, request: &mut Context) -> pingora::Result<bool> {
        let mut head = session.req_header().as_owned_parts();
        if let Some(peer) = session.client_addr().and_then(|address| address.as_inet()) {
            head.extensions.insert(PeerAddr(*peer));
        }
        match self.limit.admit(&head).await {
            Ok(admitted) => {
                request.permits = admitted.permits();
                request.admitted = Some(admitted);
                Ok(false)
            }
            Err(rejection) => {
                send(session, rejection.response_with_headers(&head)).await?;
                Ok(true)
            }
        }
    }

    async fn upstream_peer(&self, _: &mut Session, _: &mut Context) -> pingora::Result<Box<HttpPeer>> {
        let mut peer = HttpPeer::new(self.upstream, false, String::new());
        // pingora has no time-outs by default: a silent upstream would hold a request and its permits for ever.
        peer.options.total_connection_timeout = Some(Duration::from_secs(5));
        peer.options.read_timeout = Some(Duration::from_secs(60));
        peer.options.write_timeout = Some(Duration::from_secs(60));
        Ok(Box::new(peer))
    }

    /// Settles the charge by the upstream's response, and adds the headers that report the limit.
    async fn response_filter(
        &self,
        _: &mut Session,
        response: &mut ResponseHeader,
        request: &mut Context,
    ) -> pingora::Result<()> {
        if is_final(response.status)
            && let Some(admitted) = request.admitted.take()
        {
            let head = settle(admitted, response.as_owned_parts()).await;
            // In place: the reason phrase and the case of the upstream's names stay.
            for name in head.headers.keys() {
                let values = head.headers.get_all(name);
                if values != response.headers.get_all(name) {
                    response.remove_header(name);
                    for value in values {
                        response.append_header(name.clone(), value.clone())?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Settles the charge of a request whose upstream failed, by the response that pingora made.
    async fn logging(&self, session: &mut Session, _: Option<&pingora::Error>, request: &mut Context) {
        if let Some(response) = session.response_written()
            && is_final(response.status)
            && let Some(admitted) = request.admitted.take()
        {
            settle(admitted, response.as_owned_parts()).await;
        }
    }
}

/// Returns whether no other response follows, as one does after 103.
fn is_final(status: StatusCode) -> bool {
    !status.is_informational() || status == StatusCode::SWITCHING_PROTOCOLS
}

/// Settles the charge by the head of the response. Returns the head with the headers that report the limit.
async fn settle(admitted: AdmittedRequest, head: response::Parts) -> response::Parts {
    admitted.respond(Response::from_parts(head, String::new())).await.into_parts().0
}

/// Sends a response of this proxy.
async fn send(session: &mut Session, response: Response<String>) -> pingora::Result<()> {
    let (head, body) = response.into_parts();
    let mut head = ResponseHeader::from(head);
    head.insert_header(header::CONTENT_LENGTH, body.len())?;
    let is_head = session.req_header().method == Method::HEAD;
    session.write_response_header(Box::new(head), is_head).await?;
    if !is_head {
        session.write_response_body(Some(body.into()), true).await?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = Limiter::builder()
        .url(&var("TIDEGATE_REDIS_URL")?)
        .namespace("example-pingora")
        // For the tests, which also run on busy machines. The default, 100 ms, suits a service.
        .deadline(Duration::from_secs(2))
        .build()?;
    let proxies = var("PROXIES")?;
    let client = ClientIp::behind(proxies.split(',').filter(|proxy| !proxy.is_empty()))?;
    let mut limit = RateLimitLayer::new(limiter.gate("api", QUOTA), Key::client_ip(client.clone()))
        .charge(Charge::when(|response| !response.status.is_server_error()));
    if let Ok(concurrent) = var("CONCURRENT") {
        let gate = limiter.gate("concurrent", Quota::in_flight(concurrent.parse()?));
        limit = limit.and(gate, Key::client_ip(client));
    }

    let mut server = Server::new(None)?;
    server.bootstrap();
    let proxy = Proxy { limit, upstream: var("UPSTREAM")?.parse()? };
    let mut service = http_proxy_service(&server.configuration, proxy);
    service.add_tcp(&var("LISTEN")?);
    server.add_service(service);
    server.run_forever()
}
