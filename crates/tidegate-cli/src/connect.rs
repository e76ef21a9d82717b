//! Builds a limiter from the arguments.

use std::env;
use std::fs;
use std::path::Path;

use tidegate::{KeyMode, Limiter, admin::Inspector};

use crate::args::Redis;
use crate::failure::Failure;
use crate::output;

const VARIABLE: &str = "TIDEGATE_REDIS_URL";
const DEFAULT: &str = "redis://127.0.0.1:6379";

impl Redis {
    /// Returns a limiter that reports errors of Redis, and whose overrides cannot change before the program
    /// exits. The program is not an instance of the service.
    pub(crate) fn limiter(&self, json: bool) -> Result<Limiter, Failure> {
        let urls = self.urls(json);
        let first = urls.first().map_or(DEFAULT, String::as_str);
        let mut builder = Limiter::builder()
            .namespace(&self.namespace)
            .deadline(self.timeout)
            .strict()
            // The program prints the error itself.
            .stderr_warnings(false);
        builder = match &self.sentinel {
            Some(name) => builder.sentinel(urls.iter().map(String::as_str), name),
            None if self.cluster => builder.cluster(&urls),
            None if urls.len() > 1 => {
                return Err(Failure::usage("several URLs require --sentinel or --cluster: add one of them"));
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

    /// Returns the tried URLs, without passwords, and how to use another server.
    pub(crate) fn tried_servers(&self) -> String {
        let urls: Vec<String> = self.given_urls().iter().map(|url| without_login(url)).collect();
        format!("\ntried {}; set --redis or {VARIABLE} to use another server", urls.join(" "))
    }

    /// Returns the URLs of the arguments, else of the environment, else the default.
    fn given_urls(&self) -> Vec<String> {
        if !self.urls.is_empty() {
            return self.urls.clone();
        }
        let variable = env::var(VARIABLE).unwrap_or_default();
        let urls: Vec<String> = variable.split_whitespace().map(str::to_owned).collect();
        if urls.is_empty() { vec![DEFAULT.to_owned()] } else { urls }
    }

    /// Returns the URLs. Warns about a password in the arguments.
    fn urls(&self, json: bool) -> Vec<String> {
        let shows_password = |url: &String| parts(url).1.is_some_and(|login| login.contains(':'));
        if !json && self.urls.iter().any(shows_password) {
            output::warn(&format!(
                "every user of this machine can see the password in --redis (`ps`): put the URL into \
                 {VARIABLE}, or the password into a file for --password-file"
            ));
        }
        self.given_urls()
    }
}

fn without_login(url: &str) -> String {
    let (scheme, _, rest) = parts(url);
    format!("{scheme}{rest}")
}

/// Splits a URL into the scheme, the user and password, and the rest.
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
