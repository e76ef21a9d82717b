//! Whether a page in a browser has sent a request, and whether it is a page of this port.
//!
//! - A page of another site that has bound its own name to this port's address (DNS rebinding) sends that name in
//!   `Host`. Only addresses, `localhost` and the configured names are accepted.
//! - A form or script of another site sends that site in `Origin`, and `cross-site` in `Sec-Fetch-Site`. A program that is
//!   not a browser sends neither of the two headers.

use std::net::IpAddr;

use http::header::{HOST, HeaderMap, ORIGIN};
use http::uri::Authority;
use http::{Method, Uri, Version};

/// The header by which a browser tells the relation of a page to the address of its request.
const FETCH_SITE: &str = "sec-fetch-site";

/// Returns whether the request has the `Host` that RFC 9112 requires. Several lines are ambiguous: this program and a proxy
/// could read different ones. An empty one is valid, and HTTP/1.0 needs none.
pub(crate) fn has_valid_host(version: Version, headers: &HeaderMap) -> bool {
    let mut lines = headers.get_all(HOST).iter();
    match (lines.next(), lines.next()) {
        (None, _) => version < Version::HTTP_11,
        (Some(host), None) => host.is_empty() || authority(headers).is_some(),
        (Some(_), Some(_)) => false,
    }
}

/// Returns whether the request names this port by an address, `localhost` or one of these names.
pub(crate) fn is_known_host(headers: &HeaderMap, uri: &Uri, names: &[String]) -> bool {
    let host = authority(headers);
    // An absolute request target replaces `Host`, and is checked as well.
    host.as_ref().is_some_and(|host| is_known(host, names))
        && uri.authority().is_none_or(|target| is_known(target, names))
}

/// Returns whether a request can name this host: an address, or a name without port. Browsers send names in ASCII.
pub(crate) fn can_be_host(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    name.parse::<IpAddr>().is_ok() || (name.bytes().any(|byte| byte != b'.') && name.bytes().all(is_letter))
}

fn is_known(authority: &Authority, names: &[String]) -> bool {
    // In a URI, an IPv6 address has brackets.
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let is_name = |name: &str| host.eq_ignore_ascii_case(name);
    host.parse::<IpAddr>().is_ok() || is_name("localhost") || names.iter().any(|name| is_name(name))
}

fn authority(headers: &HeaderMap) -> Option<Authority> {
    let authority: Authority = headers.get(HOST)?.to_str().ok()?.parse().ok()?;
    // `user@host` is not a host.
    (!authority.as_str().contains('@')).then_some(authority)
}

/// Returns whether a page has sent the request, for ports that have no pages. A browser adds `Origin` to each request that
/// is not a GET or a HEAD.
pub(crate) fn is_sent_by_page(headers: &HeaderMap) -> bool {
    headers.contains_key(ORIGIN) || headers.contains_key(FETCH_SITE)
}

/// Returns whether the request cannot have been made by a page of another site. True for methods that change nothing.
pub(crate) fn is_same_origin(method: &Method, headers: &HeaderMap, names: &[String]) -> bool {
    if method.is_safe() {
        return true;
    }
    let is_fetched_here = match headers.get(FETCH_SITE) {
        None => true,
        Some(site) => site == "same-origin",
    };
    let is_origin_here = match headers.get(ORIGIN) {
        None => true,
        Some(origin) => origin.to_str().is_ok_and(|origin| is_own_origin(origin, headers, names)),
    };
    is_fetched_here && is_origin_here
}

/// Compares an origin with the host of the request. Behind a proxy that changes `Host`, the origin has one of the
/// configured names.
fn is_own_origin(origin: &str, headers: &HeaderMap, names: &[String]) -> bool {
    let Some(origin) = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://")) else {
        return false;
    };
    let Ok(origin) = origin.parse::<Authority>() else { return false };
    authority(headers).is_some_and(|host| host == origin)
        || names.iter().any(|name| {
            origin.as_str().eq_ignore_ascii_case(name) || origin.host().eq_ignore_ascii_case(name)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn host_is_an_address_localhost_or_a_configured_name() {
        let names = ["limits.example".to_owned()];
        let is_known =
            |host: &str| is_known_host(&headers(&[("host", host)]), &Uri::from_static("/"), &names);
        for host in [
            "127.0.0.1:8082",
            "10.1.2.3",
            "[::1]:8082",
            "[::1]",
            "localhost:1",
            "LocalHost",
            "Limits.Example:443",
        ] {
            assert!(is_known(host), "{host}");
        }
        for host in [
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "limits.example.evil",
            "localhost@evil.example",
            "evil.example@localhost",
            "",
            ":8082",
            "[::1",
            "local host",
        ] {
            assert!(!is_known(host), "{host}");
        }
        assert!(!is_known_host(&HeaderMap::new(), &Uri::from_static("/"), &names));
        let absolute = Uri::from_static("http://evil.example/");
        assert!(!is_known_host(&headers(&[("host", "localhost")]), &absolute, &names));
    }

    #[test]
    fn name_with_more_than_a_host_can_never_be_one() {
        for name in
            ["limits.example", "limits", "limits.example.", "xn--bcher-kva.example", "10.1.2.3", "::1"]
        {
            assert!(can_be_host(name), "{name}");
        }
        for name in [
            "",
            ".",
            "https://limits.example",
            "limits.example:443",
            "limits.example/",
            "*.example",
            "bücher.example",
        ] {
            assert!(!can_be_host(name), "{name}");
        }
    }

    #[test]
    fn request_of_another_origin_changes_nothing() {
        let names = ["limits.example".to_owned()];
        let check = |pairs: &[(&'static str, &str)]| {
            let mut pairs = pairs.to_vec();
            pairs.push(("host", "127.0.0.1:8082"));
            is_same_origin(&Method::POST, &headers(&pairs), &names)
        };
        assert!(check(&[]), "no browser");
        assert!(check(&[("origin", "http://127.0.0.1:8082")]));
        assert!(check(&[("origin", "http://127.0.0.1:8082"), ("sec-fetch-site", "same-origin")]));
        assert!(check(&[("origin", "https://limits.example"), ("sec-fetch-site", "same-origin")]));
        for foreign in [
            "null",
            "",
            "http://evil.example",
            "http://127.0.0.1:8083",
            "http://127.0.0.1",
            "http://localhost:8082",
            "ftp://127.0.0.1:8082",
            "https://limits.example.evil",
        ] {
            assert!(!check(&[("origin", foreign)]), "{foreign}");
            assert!(!check(&[("origin", foreign), ("sec-fetch-site", "same-origin")]), "{foreign}");
        }
        for site in ["cross-site", "same-site", "none", "", "SAME-ORIGIN"] {
            assert!(!check(&[("sec-fetch-site", site)]), "{site}");
            assert!(!check(&[("sec-fetch-site", site), ("origin", "http://127.0.0.1:8082")]), "{site}");
        }
        let foreign = headers(&[("host", "localhost"), ("origin", "http://evil.example")]);
        assert!(is_same_origin(&Method::GET, &foreign, &names), "a link to a page");
    }
}
