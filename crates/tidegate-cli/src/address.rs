//! Parses the addresses of ports.

use std::net::SocketAddr;

/// Parses an address such as `127.0.0.1:8080` or `[::1]:8080`.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| hint(text))
}

/// Returns the address that was probably meant.
fn hint(text: &str) -> String {
    let port = |text: &str| text.parse::<u16>().ok();
    if let Some(port) = port(text.trim_start_matches(':')) {
        return format!(
            "the IP address is missing: write 127.0.0.1:{port}, or 0.0.0.0:{port} for all addresses"
        );
    }
    match text.rsplit_once(':').map(|(host, number)| (host, port(number))) {
        Some(("localhost", Some(port))) => format!("a name is no address: write 127.0.0.1:{port}"),
        Some(("*", Some(port))) => format!("write 0.0.0.0:{port} for all addresses"),
        _ => "write an IP address and a port, such as 127.0.0.1:8080".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistake_in_an_address_gets_a_correct_one() {
        for text in ["127.0.0.1:0", "[::1]:8080", "0.0.0.0:8080"] {
            assert_eq!(address(text).unwrap().to_string(), text);
        }
        for (text, expected) in [
            ("8080", "write 127.0.0.1:8080, or 0.0.0.0:8080"),
            (":8080", "write 127.0.0.1:8080, or 0.0.0.0:8080"),
            ("localhost:0", "write 127.0.0.1:0"),
            ("*:8080", "write 0.0.0.0:8080"),
            ("127.0.0.1", "an IP address and a port, such as 127.0.0.1:8080"),
            ("::1:8080x", "such as 127.0.0.1:8080"),
            ("127.0.0.1:70000", "such as 127.0.0.1:8080"),
            ("70000", "such as 127.0.0.1:8080"),
            ("", "such as 127.0.0.1:8080"),
        ] {
            let error = address(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
