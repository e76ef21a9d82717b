//! actix-web: the layer as a middleware of an `App`.

use std::any::Any;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use actix_web::dev::ServerHandle;
use actix_web::http::StatusCode;
use actix_web::{App as Routes, Error, HttpRequest, HttpResponse, HttpServer, error, web};
use tidegate::Decision;
use tidegate_http::{RateLimitLayer, RequestPermits, Usage};
use tidegate_rules::RulesDecision;

use super::app::{App, FAILED, Seen, Server};

/// The thread of a server, which has two workers on threads of their own.
struct Running {
    handle: ServerHandle,
    thread: Option<JoinHandle<()>>,
}

pub(crate) fn serve(layer: RateLimitLayer, app: App) -> Server {
    start(layer, app, false)
}

pub(super) fn serve_http2(layer: RateLimitLayer, app: App) -> Server {
    start(layer, app, true)
}

fn start(layer: RateLimitLayer, app: App, is_http2: bool) -> Server {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (started, handle) = mpsc::channel();
    let thread = thread::spawn(move || {
        actix_web::rt::System::new().block_on(async move {
            let routes = move || {
                let routes = Routes::new().app_data(web::Data::new(app.clone()));
                routes.default_service(web::to(answer)).wrap(layer.clone())
            };
            let server = HttpServer::new(routes).workers(2).disable_signals().h1_allow_half_closed(false);
            let server = match is_http2 {
                true => server.listen_auto_h2c(listener),
                false => server.listen(listener),
            };
            let server = server.unwrap().run();
            started.send(server.handle()).unwrap();
            server.await.unwrap();
        });
    });
    let running = Running { handle: handle.recv().unwrap(), thread: Some(thread) };
    Server { address, is_http2, _running: Box::new(running) as Box<dyn Any + Send> }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.handle.stop(false));
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_some_and(|ended| ended.is_ok()) || thread::panicking());
    }
}

async fn answer(
    app: web::Data<App>,
    request: HttpRequest,
    decision: Option<web::ReqData<Decision>>,
    rules_decision: Option<web::ReqData<RulesDecision>>,
    usage: Option<Usage>,
    permits: RequestPermits,
) -> Result<HttpResponse, Error> {
    let seen = Seen {
        path: request.path().to_owned(),
        decision: decision.map(web::ReqData::into_inner),
        rules_decision: rules_decision.map(web::ReqData::into_inner),
        usage,
        permits,
    };
    let failed = StatusCode::from_u16(FAILED).unwrap();
    let answer = app.answer(seen).await.map_err(|_| error::InternalError::new("failed", failed))?;
    Ok(HttpResponse::build(StatusCode::from_u16(answer.status).unwrap()).streaming(answer.body))
}
