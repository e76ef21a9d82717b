//! poem: a handler checks a gate, and reports the limit as the layer of `tidegate-http` does.
//!
//! ```console
//! $ TIDEGATE_REDIS_URL=redis://127.0.0.1:6379 LISTEN=127.0.0.1:3000 cargo run --manifest-path frameworks/Cargo.toml --example poem
//! ```
#[path = "shared/gate.rs"]
mod gate;

use poem::error::InternalServerError;
use poem::http::StatusCode;
use poem::listener::TcpListener;
use poem::web::{Data, RemoteAddr};
use poem::{EndpointExt, Response, Route, Server, get, handler};
use tidegate::Gate;
use tidegate_http::{Headers, Rejection};

#[handler]
async fn hello(gate: Data<&Gate>, client: &RemoteAddr) -> poem::Result<Response> {
    let client = client.as_socket_addr().map(|address| address.ip().to_string()).unwrap_or_default();
    let decision = gate.check(&client).await.map_err(InternalServerError)?;
    let headers = Headers::new().of(&gate, &decision);
    let mut response = match decision.is_allowed() {
        true => Response::from((StatusCode::OK, "hello\n".to_owned())),
        false => {
            let rejection = Rejection::of(&gate, decision);
            Response::from((rejection.status(), rejection.message().to_owned()))
        }
    };
    response.headers_mut().extend(headers);
    Ok(response)
}

#[tokio::main]
async fn main() -> Result<(), gate::Failure> {
    let (gate, address) = gate::from_environment()?;
    let app = Route::new().at("/", get(hello)).data(gate);
    Ok(Server::new(TcpListener::bind(address)).run(app).await?)
}
