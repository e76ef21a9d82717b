//! A browser: its size, its color scheme, its log.

use fantoccini::wd::WebDriverCompatibleCommand;
use fantoccini::{Client, ClientBuilder, Locator};
use http::Method;
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tidegate_testkit::Chromium;
use url::{ParseError, Url};

use super::super::console::fixture::Console;
use crate::support::fixture::soon;

/// A browser with one window. [`close`](Self::close) ends it; so does the end of the test.
pub struct Browser {
    pub client: Client,
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

/// A command of Chromium beside those of WebDriver.
#[derive(Debug)]
struct Command {
    path: &'static str,
    body: Value,
}

impl WebDriverCompatibleCommand for Command {
    fn endpoint(&self, base: &Url, session: Option<&str>) -> Result<Url, ParseError> {
        base.join(&format!("session/{}/{}", session.unwrap_or_default(), self.path))
    }

    fn method_and_body(&self, _: &Url) -> (Method, Option<String>) {
        (Method::POST, Some(self.body.to_string()))
    }
}

impl Browser {
    pub async fn start() -> Self {
        let chromium = Chromium::start().unwrap();
        let capabilities = json!({
            "goog:chromeOptions": { "binary": chromium.program(), "args": Chromium::ARGUMENTS },
            "goog:loggingPrefs": { "browser": "ALL" },
        });
        let Value::Object(capabilities) = capabilities else { unreachable!() };
        let mut builder = ClientBuilder::new(HttpConnector::new());
        let client = builder.capabilities(capabilities).connect(&chromium.url()).await.unwrap();
        Self { client, _chromium: chromium }
    }

    pub async fn close(self) {
        self.client.close().await.unwrap();
    }

    async fn devtools(&self, command: &str, parameters: Value) {
        let body = json!({ "cmd": command, "params": parameters });
        self.client.issue_cmd(Command { path: "goog/cdp/execute", body }).await.unwrap();
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
        let log = self
            .client
            .issue_cmd(Command { path: "se/log", body: json!({ "type": "browser" }) })
            .await
            .unwrap();
        let entries = log.as_array().cloned().unwrap_or_default();
        let is_bad = |entry: &&Value| matches!(entry["level"].as_str(), Some("SEVERE" | "WARNING"));
        entries.iter().filter(is_bad).map(|entry| entry["message"].to_string()).collect()
    }

    pub async fn eval(&self, script: &str) -> Value {
        self.client.execute(script, Vec::new()).await.unwrap()
    }

    pub async fn open(&self, console: &Console, path: &str) {
        self.client.goto(&console.url(path)).await.unwrap();
    }

    pub async fn log_in(&self, console: &Console, token: &str) {
        self.open(console, "/").await;
        self.fill("#token", token).await;
        self.click("main button").await;
    }

    pub async fn fill(&self, selector: &str, text: &str) {
        let element = self.client.wait().for_element(Locator::Css(selector)).await.unwrap();
        element.clear().await.unwrap();
        element.send_keys(text).await.unwrap();
    }

    pub async fn click(&self, selector: &str) {
        self.client.wait().for_element(Locator::Css(selector)).await.unwrap().click().await.unwrap();
    }

    /// Returns a picture of the window, as PNG.
    pub async fn screenshot(&self) -> Vec<u8> {
        self.client.screenshot().await.unwrap()
    }

    /// Returns the visible text of the page.
    pub async fn text(&self) -> String {
        self.eval("return document.body.innerText").await.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until the page shows a text.
    pub async fn sees(&self, text: &str) {
        soon(&format!("the page shows {text}"), async || self.text().await.contains(text)).await;
    }
}
