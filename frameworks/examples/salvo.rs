//! salvo: a handler in front of the others checks a gate, and reports the limit as the layer of `tidegate-http` does.
//!
//! ```console
//! $ TIDEGATE_REDIS_URL=redis://127.0.0.1:6379 LISTEN=127.0.0.1:3000 cargo run --manifest-path frameworks/Cargo.toml --example salvo
//! ```
#[path = "shared/gate.rs"]
mod gate;

use salvo::prelude::*;
use tidegate::Gate;
use tidegate_http::{Headers, Rejection};

struct Limit(Gate);

#[handler]
impl Limit {
    async fn handle(
        &self,
        request: &Request,
        response: &mut Response,
        flow: &mut FlowCtrl,
    ) -> Result<(), StatusError> {
        let client = request.remote_addr().ip().map(|address| address.to_string()).unwrap_or_default();
        let decision = self.0.check(&client).await.map_err(|_| StatusError::internal_server_error())?;
        response.headers_mut().extend(Headers::new().of(&self.0, &decision));
        if !decision.is_allowed() {
            let rejection = Rejection::of(&self.0, decision);
            response.status_code(rejection.status()).render(rejection.message().to_owned());
            flow.skip_rest();
        }
        Ok(())
    }
}

#[handler]
async fn hello() -> &'static str {
    "hello\n"
}

#[tokio::main]
async fn main() -> Result<(), gate::Failure> {
    let (gate, address) = gate::from_environment()?;
    let router = Router::new().hoop(Limit(gate)).get(hello);
    Server::new(TcpListener::new(address).bind().await).serve(router).await;
    Ok(())
}
