//! Rules, tokens and clients for tests of the admin port.

use reqwest::Client;
use reqwest::redirect::Policy;
use tidegate_server::AdminTokens;

pub const RULES: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 2, name: per_user }
";
pub const OPERATOR: &str = "the-token-of-the-operator";
pub const VIEWER: &str = "the-token-of-the-viewer";

pub fn tokens() -> AdminTokens {
    AdminTokens::parse(&format!("ada operator token:{OPERATOR}\nvic viewer token:{VIEWER}")).unwrap()
}

/// Follows no redirects and keeps no cookies.
pub fn client() -> Client {
    Client::builder().redirect(Policy::none()).build().unwrap()
}
