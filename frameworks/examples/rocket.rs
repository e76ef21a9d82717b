//! rocket: a handler behind a limit, with the rejections and headers of the layer of `tidegate-http`. rocket has its own
//! types for heads. The peer is `Request::remote`: `IpAddr` and `client_ip` would be what the client sends as
//! `X-Real-IP`.
//!
//! ```console
//! $ TIDEGATE_REDIS_URL=redis://127.0.0.1:6379 LISTEN=127.0.0.1:3000 cargo run --manifest-path frameworks/Cargo.toml --example rocket
//! ```
#[path = "shared/limit.rs"]
mod limit;
#[path = "shared/respond.rs"]
mod respond;

use std::convert::Infallible;
use std::io::Cursor;

use rocket::http::Status;
use rocket::request::{FromRequest, Outcome};
use rocket::response::Responder;
use rocket::{Config, Request, Response, State, get, routes};
use tidegate_http::RateLimitLayer;
use tidegate_http::http::request::Parts;
use tidegate_http::http::{self, HeaderName, HeaderValue, Method, Uri};

/// The head of a request.
struct Head(Parts);

#[rocket::async_trait]
impl<'r> FromRequest<'r> for Head {
    type Error = Infallible;

    async fn from_request(request: &'r Request<'_>) -> Outcome<Self, Infallible> {
        let headers = request.headers().iter().filter_map(|header| {
            let name = HeaderName::try_from(header.name().as_str()).ok()?;
            Some((name, HeaderValue::try_from(header.value()).ok()?))
        });
        let method = Method::try_from(request.method().as_str()).unwrap_or_default();
        let uri = Uri::try_from(request.uri().to_string()).unwrap_or_default();
        Outcome::Success(Self(limit::head(method, uri, headers.collect(), request.remote())))
    }
}

/// A response with headers that are known at run time.
struct Limited(http::Response<String>);

impl<'r> Responder<'r, 'static> for Limited {
    fn respond_to(self, _: &'r Request<'_>) -> rocket::response::Result<'static> {
        let (head, body) = self.0.into_parts();
        let mut response = Response::new();
        response.set_status(Status::new(head.status.as_u16()));
        for (name, value) in &head.headers {
            let value = String::from_utf8_lossy(value.as_bytes());
            response.adjoin_raw_header(name.to_string(), value.into_owned());
        }
        response.set_sized_body(body.len(), Cursor::new(body));
        Ok(response)
    }
}

#[get("/")]
async fn limited(limit: &State<RateLimitLayer>, head: Head) -> Limited {
    Limited(respond::respond(limit, &head.0, hello()).await)
}

async fn hello() -> http::Response<String> {
    http::Response::new("hello\n".to_owned())
}

#[rocket::main]
async fn main() -> Result<(), limit::Failure> {
    let (limit, address) = limit::from_environment()?;
    let config = Config { address: address.ip(), port: address.port(), ..Config::release_default() };
    rocket::custom(config).manage(limit).mount("/", routes![limited]).launch().await?;
    Ok(())
}
