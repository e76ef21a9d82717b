//! salvo: a handler in front of the others, with the rejections and headers of the layer of `tidegate-http`.
//!
//! ```console
//! $ TIDEGATE_REDIS_URL=redis://127.0.0.1:6379 LISTEN=127.0.0.1:3000 cargo run --manifest-path frameworks/Cargo.toml --example salvo
//! ```
#[path = "shared/limit.rs"]
mod limit;

use salvo::prelude::*;
use tidegate_http::{RateLimitLayer, http};

struct Limit(RateLimitLayer);

#[handler]
impl Limit {
    async fn handle(
        &self,
        request: &mut Request,
        depot: &mut Depot,
        response: &mut Response,
        flow: &mut FlowCtrl,
    ) {
        let peer = request.remote_addr().clone().into_std();
        let headers = request.headers().clone();
        let head = limit::head(request.method().clone(), request.uri().clone(), headers, peer);
        match self.0.admit(&head).await {
            Ok(admitted) => {
                flow.call_next(request, depot, response).await;
                let mut head = http::Response::new(String::new());
                *head.status_mut() = response.status_code.unwrap_or_default();
                *head.headers_mut() = std::mem::take(response.headers_mut());
                response.set_headers(std::mem::take(admitted.respond(head).await.headers_mut()));
            }
            Err(rejection) => {
                let (head, body) = rejection.response_with_headers(&head).into_parts();
                response.status_code(head.status).set_headers(head.headers);
                response.body(body);
                flow.skip_rest();
            }
        }
    }
}

#[handler]
async fn hello() -> &'static str {
    "hello\n"
}

#[tokio::main]
async fn main() -> Result<(), limit::Failure> {
    let (limit, address) = limit::from_environment()?;
    let router = Router::new().hoop(Limit(limit)).get(hello);
    Server::new(TcpListener::new(address).bind().await).serve(router).await;
    Ok(())
}
