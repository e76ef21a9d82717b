//! The page that a login leads to.

use http::Uri;

/// The page after a login that was not asked for by another page.
const START: &str = "/";
/// The maximum length of the address of the page after the login.
const MAX_PAGE_BYTES: usize = 2_000;

/// Returns the address of the login that leads to this page.
pub(super) fn login_address(page: &Uri) -> String {
    let page = page.path_and_query().map_or(START, |page| page.as_str());
    let next: String = form_urlencoded::byte_serialize(page.as_bytes()).collect();
    format!("/login?next={next}")
}

/// Returns the path if it leads to a page of this port, else the start.
pub(super) fn own_page(next: &str) -> &str {
    // Browsers read `//host` and `/\host` as the address of another host.
    let is_path = next.starts_with('/') && !next[1..].starts_with(['/', '\\']);
    let is_plain = next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    if is_path && is_plain && next.len() <= MAX_PAGE_BYTES { next } else { START }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn login_leads_only_to_pages_of_this_port() {
        for page in ["/", "/keys?gate=a&key=b%20c", "/a//b"] {
            assert_eq!(own_page(page), page);
        }
        let long = format!("/{}", "x".repeat(MAX_PAGE_BYTES));
        for page in [
            "",
            "keys",
            "//evil.example",
            "/\\evil.example",
            "https://evil.example",
            "/a b",
            "/é",
            "/\r\nx: y",
            "/\t/e",
            &long,
        ] {
            assert_eq!(own_page(page), START, "{page}");
        }
        let uri = "/keys?key=%22%3E%3Cscript%3E&x='".parse().unwrap();
        assert_eq!(login_address(&uri), "/login?next=%2Fkeys%3Fkey%3D%2522%253E%253Cscript%253E%26x%3D%27");
    }
}
