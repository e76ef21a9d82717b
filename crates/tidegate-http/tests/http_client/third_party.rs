//! A third-party service with its own limits.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::http::{Response, StatusCode};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// A server that sends the response set by [`Self::respond_with`], or 200. Ends when dropped.
pub(super) struct ThirdParty {
    pub(super) url: String,
    state: Arc<Mutex<State>>,
    /// Releases the response to `/delayed`.
    pub(super) release: Arc<Notify>,
    server: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    response: Option<(u16, Vec<(String, String)>)>,
    received: Vec<Instant>,
}

impl ThirdParty {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let state = Arc::<Mutex<State>>::default();
        let direct_state = Arc::clone(&state);
        let delayed_state = Arc::clone(&state);
        let is_released = Arc::<Notify>::default();
        let release = Arc::clone(&is_released);
        let app = Router::new()
            .route(
                "/delayed",
                get(async move || {
                    delayed_state.lock().unwrap().received.push(Instant::now());
                    is_released.notified().await;
                    response(&delayed_state.lock().unwrap())
                }),
            )
            .fallback(async move || {
                let mut state = direct_state.lock().unwrap();
                state.received.push(Instant::now());
                response(&state)
            });
        let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { url, state, release, server }
    }

    /// Sets the response to all later requests.
    pub(super) fn respond_with(&self, status: u16, headers: &[(&str, &str)]) {
        let headers = headers.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        self.state.lock().unwrap().response = Some((status, headers.collect()));
    }

    /// Returns the time of each request.
    pub(super) fn received(&self) -> Vec<Instant> {
        self.state.lock().unwrap().received.clone()
    }
}

fn response(state: &State) -> Response<Body> {
    let mut response = Response::new(Body::from("a response"));
    if let Some((status, headers)) = &state.response {
        *response.status_mut() = StatusCode::from_u16(*status).unwrap();
        for (name, value) in headers {
            let name: axum::http::HeaderName = name.parse().unwrap();
            response.headers_mut().append(name, value.parse().unwrap());
        }
    }
    response
}

impl Drop for ThirdParty {
    fn drop(&mut self) {
        self.server.abort();
    }
}
