//! From arguments to a limiter.

use std::env;
use std::fs;
use std::path::Path;
use std::time::Duration;

use tidegate::internals::Inspector;
use tidegate::{KeyMode, Limiter, OnFailure};

use crate::args::Redis;
use crate::failure::Failure;
use crate::output;

const VARIABLE: &str = "TIDEGATE_REDIS_URL";
const DEFAULT: &str = "redis://127.0.0.1:6379";

impl Redis {
    /// A limiter that says what happened where Redis does not answer, and remembers nothing.
    pub(crate) fn limiter(&self, json: bool) -> Result<Limiter, Failure> {
        let urls = self.urls(json);
        let first = urls.first().map_or(DEFAULT, String::as_str);
        let mut builder = Limiter::builder()
            .namespace(&self.namespace)
            .deadline(self.timeout)
            .on_failure(OnFailure::Error)
            .breaker(false)
            .deny_cache(Duration::ZERO)
            // This is none of the service's processes, and ends before anything changes.
            .instances(1)
            .follow_orders(false);
        builder = match &self.sentinel {
            Some(name) => builder.sentinel(urls.iter().map(String::as_str), name),
            #[cfg(feature = "cluster")]
            None if self.cluster => builder.cluster(&urls),
            None if urls.len() > 1 => {
                return Err(Failure::usage("several URLs are for --sentinel or --cluster: say which"));
            }
            None => builder.url(first),
        };
        if let Some(path) = &self.password_file {
            let password = text(path)?;
            let password = password.trim_end_matches(['\r', '\n']);
            builder = builder.credentials(self.user.as_deref().unwrap_or("default"), password);
        }
        if let Some(path) = &self.hmac_secret_file {
            builder = builder.key_mode(KeyMode::Hmac(bytes(path)?));
        }
        #[cfg(feature = "tls")]
        {
            if let Some(path) = &self.tls_ca {
                builder = builder.tls_ca(&bytes(path)?);
            }
            if let (Some(certificate), Some(key)) = (&self.tls_certificate, &self.tls_key) {
                builder = builder.tls_client_certificate(&bytes(certificate)?, &bytes(key)?);
            }
        }
        Ok(builder.build()?)
    }

    pub(crate) fn inspector(&self, json: bool) -> Result<Inspector, Failure> {
        Ok(Inspector::new(&self.limiter(json)?)?)
    }

    /// Which was asked, without passwords, and how to ask another.
    pub(crate) fn asked(&self) -> String {
        let urls: Vec<String> = self.given().iter().map(|url| without_login(url)).collect();
        format!("\nasked was {}; --redis or {VARIABLE} says which", urls.join(" "))
    }

    fn given(&self) -> Vec<String> {
        if !self.urls.is_empty() {
            return self.urls.clone();
        }
        let said = env::var(VARIABLE).unwrap_or_default();
        let urls: Vec<String> = said.split_whitespace().map(str::to_owned).collect();
        if urls.is_empty() { vec![DEFAULT.to_owned()] } else { urls }
    }

    fn urls(&self, json: bool) -> Vec<String> {
        let shows_password = |url: &String| parts(url).1.is_some_and(|login| login.contains(':'));
        if !json && self.urls.iter().any(shows_password) {
            output::warn(&format!(
                "the password in --redis can be seen by everyone on this machine (`ps`): put the URL into {VARIABLE}, or the password into a file for --password-file"
            ));
        }
        self.given()
    }
}

fn without_login(url: &str) -> String {
    let (scheme, _, rest) = parts(url);
    format!("{scheme}{rest}")
}

/// Scheme, user and password, and the rest of a URL.
fn parts(url: &str) -> (&str, Option<&str>, &str) {
    let at = url.find("://").map_or(0, |at| at + 3);
    let (scheme, rest) = url.split_at(at);
    let authority = rest.split('/').next().unwrap_or_default();
    match authority.rfind('@') {
        Some(end) => (scheme, Some(&rest[..end]), &rest[end + 1..]),
        None => (scheme, None, rest),
    }
}

fn bytes(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|error| Failure::unreadable(path, &error))
}

fn text(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| Failure::unreadable(path, &error))
}
