//! Builds an HTTP request from the arguments.

use std::net::SocketAddr;

use http::Request;
use http::request::Parts;
use tidegate_http::{Descriptors, Key, PeerAddr};

use crate::args::HttpRequest;
use crate::failure::Failure;

impl HttpRequest {
    /// Returns the request as a service would receive it.
    pub(crate) fn parts(&self) -> Result<Parts, Failure> {
        let line = self.request.as_deref().unwrap_or_default();
        let (method, target) = line.split_once(' ').unwrap_or(("GET", line));
        let mut request = Request::builder().method(method).uri(target);
        for header in &self.header {
            let (name, value) = split(header, ':', "header", "x-api-key: k1")?;
            request = request.header(name, value);
        }
        if let Some(ip) = self.ip {
            request = request.extension(PeerAddr(SocketAddr::new(ip, 0)));
        }
        let invalid_request =
            |error| Failure::usage(format!("invalid request `{line}`: {error}; write such as `GET /login`"));
        Ok(request.body(()).map_err(invalid_request)?.into_parts().0)
    }

    /// Returns the descriptors' source, with the values that a service would add.
    pub(crate) fn descriptors(&self, domain: &str) -> Result<Descriptors, Failure> {
        self.extension.iter().try_fold(Descriptors::of(domain), |descriptors, extension| {
            let (name, value) = split(extension, '=', "extension", "user=42")?;
            Ok(descriptors.extension(name, Key::constant(value)))
        })
    }
}

fn split<'t>(
    text: &'t str,
    separator: char,
    noun: &str,
    example: &str,
) -> Result<(&'t str, &'t str), Failure> {
    let parts = text.split_once(separator).filter(|(name, _)| !name.is_empty());
    let (name, value) =
        parts.ok_or_else(|| Failure::usage(format!("invalid {noun} `{text}`: write such as `{example}`")))?;
    Ok((name, value.trim_start()))
}
