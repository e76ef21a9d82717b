//! A browser: its size, its color scheme, its log. A client of WebDriver for the few commands that the tests need.

use std::time::Duration;

use reqwest::{Client, Method};
use serde_json::{Value, json};
use tidegate_testkit::Chromium;

use super::super::html::fixture::Console;
use crate::support::fixture::{HANGS, soon};

/// The name of an element's id in the messages of WebDriver.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A browser with one window. It ends with the test.
pub struct Browser {
    client: Client,
    /// The URL of the session.
    session: String,
    _chromium: Chromium,
}

/// The color scheme of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Light,
    Dark,
}

impl Scheme {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }
}

/// Sends a command, and returns its value, or the error's text.
async fn send(client: &Client, method: Method, url: &str, body: Option<Value>) -> Result<Value, String> {
    let mut request = client.request(method, url).timeout(HANGS * 2);
    if let Some(body) = body {
        request = request.header("content-type", "application/json").body(body.to_string());
    }
    let text = request.send().await.unwrap().text().await.unwrap();
    let reply: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    match reply["value"]["error"].as_str() {
        Some(error) => Err(format!("{error}: {}", reply["value"]["message"])),
        None => Ok(reply["value"].clone()),
    }
}

impl Browser {
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts a browser with further arguments.
    pub async fn start_with(arguments: &[&str]) -> Self {
        let chromium = Chromium::start().unwrap();
        let arguments = [&Chromium::ARGUMENTS, arguments].concat();
        let capabilities = json!({
            "goog:chromeOptions": { "binary": chromium.program(), "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL" },
        });
        let body = json!({ "capabilities": { "alwaysMatch": capabilities } });
        let client = Client::builder().no_proxy().build().unwrap();
        let sessions = format!("{}/session", chromium.url());
        let session = send(&client, Method::POST, &sessions, Some(body)).await.unwrap();
        let session = format!("{sessions}/{}", session["sessionId"].as_str().unwrap());
        Self { client, session, _chromium: chromium }
    }

    pub async fn close(self) {
        send(&self.client, Method::DELETE, &self.session, None).await.unwrap();
    }

    async fn try_post(&self, path: &str, body: Value) -> Result<Value, String> {
        send(&self.client, Method::POST, &format!("{}/{path}", self.session), Some(body)).await
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        self.try_post(path, body).await.unwrap()
    }

    async fn devtools(&self, command: &str, parameters: Value) -> Value {
        self.post("goog/cdp/execute", json!({ "cmd": command, "params": parameters })).await
    }

    /// Sets the width of the page in CSS pixels. A window cannot be as narrow as a phone.
    pub async fn resize(&self, width: u32) {
        let parameters = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", parameters).await;
    }

    pub async fn prefer(&self, scheme: Scheme) {
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme.as_str() });
        self.devtools("Emulation.setEmulatedMedia", json!({ "features": [feature] })).await;
    }

    /// Returns the errors and warnings that the browser has logged since the last call: of scripts, of loading, and of
    /// what the policy of the page has blocked.
    pub async fn errors(&self) -> Vec<String> {
        let log = self.post("se/log", json!({ "type": "browser" })).await;
        let entries = log.as_array().cloned().unwrap_or_default();
        let is_bad = |entry: &&Value| matches!(entry["level"].as_str(), Some("SEVERE" | "WARNING"));
        entries.iter().filter(is_bad).map(|entry| entry["message"].to_string()).collect()
    }

    pub async fn eval(&self, script: &str) -> Value {
        self.post("execute/sync", json!({ "script": script, "args": [] })).await
    }

    pub async fn open(&self, console: &Console, path: &str) {
        self.visit(&console.url(path)).await;
    }

    pub async fn visit(&self, url: &str) {
        self.post("url", json!({ "url": url })).await;
    }

    pub async fn log_in(&self, console: &Console, token: &str) {
        self.open(console, "/").await;
        self.fill("#token", token).await;
        self.click("main button").await;
    }

    /// Waits for an element, and does something with it. Repeats if the page was replaced meanwhile.
    async fn with(&self, selector: &str, action: &str, body: Value) {
        let start = std::time::Instant::now();
        loop {
            let found = self.try_post("element", json!({ "using": "css selector", "value": selector })).await;
            let done = match &found {
                Ok(element) => {
                    let id = element[ELEMENT].as_str().unwrap();
                    self.try_post(&format!("element/{id}/{action}"), body.clone()).await
                }
                Err(error) => Err(error.clone()),
            };
            match done {
                Ok(_) => return,
                Err(error) => assert!(start.elapsed() < HANGS, "{action} {selector}: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub async fn fill(&self, selector: &str, text: &str) {
        self.with(selector, "clear", json!({})).await;
        self.with(selector, "value", json!({ "text": text })).await;
    }

    pub async fn click(&self, selector: &str) {
        self.with(selector, "click", json!({})).await;
    }

    /// Presses the Tab key.
    pub async fn tab(&self) {
        let key = |kind: &str| json!({ "type": kind, "value": "\u{e004}" });
        let actions = json!({ "type": "key", "id": "keyboard", "actions": [key("keyDown"), key("keyUp")] });
        self.post("actions", json!({ "actions": [actions] })).await;
    }

    /// Returns a picture of the window, as WebP in base64.
    pub async fn screenshot(&self) -> String {
        let picture =
            self.devtools("Page.captureScreenshot", json!({ "format": "webp", "quality": 82 })).await;
        picture["data"].as_str().unwrap().to_owned()
    }

    /// Returns the visible text of the page.
    pub async fn text(&self) -> String {
        self.eval("return document.body ? document.body.innerText : ''")
            .await
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    /// Waits until the page shows a text.
    pub async fn sees(&self, text: &str) {
        soon(&format!("the page shows {text}"), async || self.text().await.contains(text)).await;
    }
}
