//! rocket: a handler checks a gate, and reports the limit as the layer of `tidegate-http` does. rocket has types of its
//! own for headers. The address is that of the connection: `IpAddr` and `client_ip` would be what the client sends as
//! `X-Real-IP`.
//!
//! ```console
//! $ TIDEGATE_REDIS_URL=redis://127.0.0.1:6379 LISTEN=127.0.0.1:3000 cargo run --manifest-path frameworks/Cargo.toml --example rocket
//! ```
#[path = "shared/gate.rs"]
mod gate;

use std::io::Cursor;
use std::net::SocketAddr;

use rocket::http::Status;
use rocket::{Config, Response, State, get, routes};
use tidegate::Gate;
use tidegate_http::{Headers, Rejection};

/// A response with headers that are known at run time.
struct Limited(Response<'static>);

impl<'r> rocket::response::Responder<'r, 'static> for Limited {
    fn respond_to(self, _: &'r rocket::Request<'_>) -> rocket::response::Result<'static> {
        Ok(self.0)
    }
}

#[get("/")]
async fn hello(gate: &State<Gate>, client: SocketAddr) -> Result<Limited, Status> {
    let decision = gate.check(&client.ip().to_string()).await.map_err(|_| Status::InternalServerError)?;
    let mut response = Response::new();
    for (name, value) in &Headers::new().of(gate, &decision) {
        response.adjoin_raw_header(name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned());
    }
    let body = match decision.is_allowed() {
        true => "hello\n".to_owned(),
        false => {
            let rejection = Rejection::of(gate, decision);
            response.set_status(Status::new(rejection.status().as_u16()));
            rejection.message().to_owned()
        }
    };
    response.set_sized_body(body.len(), Cursor::new(body));
    Ok(Limited(response))
}

#[rocket::main]
async fn main() -> Result<(), gate::Failure> {
    let (gate, address) = gate::from_environment()?;
    let config = Config { address: address.ip(), port: address.port(), ..Config::release_default() };
    rocket::custom(config).manage(gate).mount("/", routes![hello]).launch().await?;
    Ok(())
}
