//! A mock of the model's API: repeats the words of the prompt. Each word is a token. The model `slow` pauses between
//! words, and the model `broken` fails.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::Failure;

/// Starts the mock on a free port. Returns its URL.
pub(super) async fn start() -> Result<String, Failure> {
    let app = Router::new()
        .route("/v1/chat/completions", post(|body: Bytes| async move { answer(&body, openai) }))
        .route("/v1/messages", post(|body: Bytes| async move { answer(&body, anthropic) }));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async { axum::serve(listener, app).await });
    Ok(url)
}

fn answer(body: &[u8], events: fn(&[String]) -> Vec<String>) -> Response {
    let request: Value = serde_json::from_slice(body).unwrap_or_default();
    if request["model"] == "broken" {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let pause = Duration::from_millis(if request["model"] == "slow" { 50 } else { 0 });
    let prompt = request["messages"][0]["content"].as_str().unwrap_or_default();
    let words: Vec<String> = prompt.split_whitespace().map(str::to_owned).collect();
    let events = stream::iter(events(&words)).then(move |event| async move {
        tokio::time::sleep(pause).await;
        Ok::<_, Infallible>(event + "\n\n")
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response()
}

fn openai(words: &[String]) -> Vec<String> {
    let tokens = words.len();
    let mut events: Vec<String> = Vec::new();
    for word in words {
        let text = format!("{word} ");
        events.push(format!("data: {}", json!({ "choices": [{ "delta": { "content": text } }] })));
    }
    let usage = format!(r#"{{"prompt_tokens":{tokens},"completion_tokens":{tokens}}}"#);
    events.push(format!(r#"data: {{"choices":[],"usage":{usage}}}"#));
    events.push("data: [DONE]".to_owned());
    events
}

fn anthropic(words: &[String]) -> Vec<String> {
    let event = |kind: &str, rest: String| format!("event: {kind}\ndata: {{\"type\":\"{kind}\"{rest}}}");
    let tokens = words.len();
    let usage = format!(r#"{{"input_tokens":{tokens},"output_tokens":1}}"#);
    let mut events = vec![event("message_start", format!(r#","message":{{"usage":{usage}}}"#))];
    for word in words {
        let text = json!(format!("{word} "));
        events
            .push(event("content_block_delta", format!(r#","delta":{{"type":"text_delta","text":{text}}}"#)));
    }
    let usage = format!(r#"{{"output_tokens":{tokens}}}"#);
    events.push(event("message_delta", format!(r#","delta":{{"stop_reason":"end_turn"}},"usage":{usage}"#)));
    events.push(event("message_stop", String::new()));
    events
}
