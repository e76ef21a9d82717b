//! poem: a handler behind a limit, with the rejections and headers of the layer of `tidegate-http`.
//!
//! ```console
//! $ TIDEGATE_REDIS_URL=redis://127.0.0.1:6379 LISTEN=127.0.0.1:3000 cargo run --manifest-path frameworks/Cargo.toml --example poem
//! ```
#[path = "shared/limit.rs"]
mod limit;
#[path = "shared/respond.rs"]
mod respond;

use poem::listener::TcpListener;
use poem::web::Data;
use poem::{EndpointExt, Request, Response, Route, Server, get, handler};
use tidegate_http::{RateLimitLayer, http};

#[handler]
async fn limited(limit: Data<&RateLimitLayer>, request: &Request) -> Response {
    let peer = request.remote_addr().as_socket_addr().copied();
    let headers = request.headers().clone();
    let head = limit::head(request.method().clone(), request.uri().clone(), headers, peer);
    let (head, body) = respond::respond(&limit, &head, hello()).await.into_parts();
    let mut response = Response::from((head.status, body));
    response.headers_mut().extend(head.headers);
    response
}

async fn hello() -> http::Response<String> {
    http::Response::new("hello\n".to_owned())
}

#[tokio::main]
async fn main() -> Result<(), limit::Failure> {
    let (limit, address) = limit::from_environment()?;
    let app = Route::new().at("/", get(limited)).data(limit);
    Ok(Server::new(TcpListener::bind(address)).run(app).await?)
}
