//! A service of somebody else, with limits of its own.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::http::{Response, StatusCode};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// Answers as it is told to, else 200; ends when dropped.
pub(super) struct ThirdParty {
    pub(super) url: String,
    state: Arc<Mutex<State>>,
    /// Lets an answer to `/held` go.
    pub(super) release: Arc<Notify>,
    server: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    answer: Option<(u16, Vec<(String, String)>)>,
    asked: Vec<Instant>,
}

impl ThirdParty {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let state = Arc::<Mutex<State>>::default();
        let now = Arc::clone(&state);
        let later = Arc::clone(&state);
        let is_released = Arc::<Notify>::default();
        let release = Arc::clone(&is_released);
        let app = Router::new()
            .route(
                "/held",
                get(async move || {
                    later.lock().unwrap().asked.push(Instant::now());
                    is_released.notified().await;
                    answer(&later.lock().unwrap())
                }),
            )
            .fallback(async move || {
                let mut state = now.lock().unwrap();
                state.asked.push(Instant::now());
                answer(&state)
            });
        let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { url, state, release, server }
    }

    /// Answers so, until told otherwise.
    pub(super) fn answers(&self, status: u16, headers: &[(&str, &str)]) {
        let headers = headers.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        self.state.lock().unwrap().answer = Some((status, headers.collect()));
    }

    /// When it was asked.
    pub(super) fn asked(&self) -> Vec<Instant> {
        self.state.lock().unwrap().asked.clone()
    }
}

fn answer(state: &State) -> Response<Body> {
    let mut response = Response::new(Body::from("an answer"));
    if let Some((status, headers)) = &state.answer {
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
