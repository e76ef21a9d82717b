//! The normal form of a path.

use std::borrow::Cow;

/// Returns the path as Envoy normalizes it, so that spellings of one path are one key. In this order:
///
/// 1. `\` becomes `/`.
/// 2. Escapes of unreserved characters (`A-Z a-z 0-9 - . _ ~`) are decoded, once: `%61` becomes `a`. Other
///    escapes stay, in upper case: `%2f` becomes `%2F`. Invalid escapes stay as they are. Characters that a
///    URI may not contain are escaped.
/// 3. The segments `.` and `..` are resolved.
/// 4. Adjacent slashes are merged.
///
/// Takes time linear in the length. Allocates only if the path is not normal.
pub(super) fn normalized(path: &str) -> Cow<'_, [u8]> {
    let path = path.as_bytes();
    match path.strip_prefix(b"/") {
        Some(segments) if !is_normal(segments) => Cow::Owned(normalize(segments)),
        // `*` and the empty path of CONNECT have no segments.
        _ => Cow::Borrowed(path),
    }
}

/// Returns whether [`normalize`] would return the same path.
fn is_normal(segments: &[u8]) -> bool {
    let mut segments = segments.split(|&byte| byte == b'/').peekable();
    while let Some(segment) = segments.next() {
        let is_merged = segment.is_empty() && segments.peek().is_some();
        if is_merged || matches!(segment, b"." | b"..") || !is_normal_segment(segment) {
            return false;
        }
    }
    true
}

fn is_normal_segment(mut rest: &[u8]) -> bool {
    while let Some((&first, after)) = rest.split_first() {
        rest = match escaped_byte(rest) {
            Some(byte) if rest[..3] != normal_escape(byte) || is_unreserved(byte) => return false,
            Some(_) => &rest[3..],
            None if is_kept(first) => after,
            None => return false,
        };
    }
    true
}

fn normalize(segments: &[u8]) -> Vec<u8> {
    let mut normal = Vec::with_capacity(1 + segments.len());
    let mut is_directory = false;
    for segment in segments.split(|byte| matches!(byte, b'/' | b'\\')) {
        let start = normal.len();
        normal.push(b'/');
        append(&mut normal, segment);
        is_directory = match &normal[start..] {
            b"/." => {
                normal.truncate(start);
                true
            }
            b"/.." => {
                normal.truncate(start);
                normal.truncate(normal.iter().rposition(|&byte| byte == b'/').unwrap_or(0));
                true
            }
            _ => false,
        };
    }
    // `/a/.` is the same directory as `/a/`.
    if is_directory {
        normal.push(b'/');
    }
    // Last, as in Envoy: `/a//../b` is `/a/b`.
    normal.dedup_by(|next, previous| (*next, *previous) == (b'/', b'/'));
    normal
}

fn append(normal: &mut Vec<u8>, mut rest: &[u8]) {
    while let Some((&first, after)) = rest.split_first() {
        let escaped = escaped_byte(rest);
        rest = if escaped.is_some() { &rest[3..] } else { after };
        match escaped {
            Some(byte) if is_unreserved(byte) => normal.push(byte),
            Some(byte) => normal.extend(normal_escape(byte)),
            None if is_kept(first) => normal.push(first),
            None => normal.extend(normal_escape(first)),
        }
    }
}

/// Returns the byte of the escape at the start, such as `%2F`; `None` if there is no valid one.
fn escaped_byte(path: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = *path else { return None };
    let digit = |byte| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? << 4 | digit(low)?).ok()
}

fn normal_escape(byte: u8) -> [u8; 3] {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    [b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Returns whether a byte outside an escape stays: a character of RFC 3986's segments, or the `%` of an
/// invalid escape.
fn is_kept(byte: u8) -> bool {
    is_unreserved(byte) || b"!$&'()*+,;=:@%".contains(&byte)
}

/// The pattern of the route that actix-web will match.
#[cfg(feature = "actix")]
#[derive(Clone)]
pub(crate) struct RoutePattern(pub(crate) String);

/// Returns the pattern of the route, such as `/users/{id}`.
#[cfg(any(feature = "actix", feature = "axum"))]
pub(crate) fn pattern_of(extensions: &http::Extensions) -> Option<&str> {
    #[cfg(feature = "actix")]
    if let Some(RoutePattern(pattern)) = extensions.get() {
        return Some(pattern);
    }
    #[cfg(feature = "axum")]
    if let Some(path) = extensions.get::<axum::extract::MatchedPath>() {
        return Some(path.as_str());
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn only_paths_that_change_are_copied(path in r#"(/|\\|\.|%|%2|%2[eEfF]|%61|%2541|[0aG]|[!"{é]){0,24}"#) {
            let normal = normalize(path.as_bytes());
            let path = format!("/{path}");
            let is_borrowed = matches!(normalized(&path), Cow::Borrowed(_));
            prop_assert_eq!(is_borrowed, normal == path.as_bytes(), "{}", path);
            prop_assert_eq!(&*normalized(&path), &normal[..]);
        }

        #[test]
        fn a_normal_path_has_no_dot_segments_and_no_adjacent_slashes(path in r#"(/|\\|\.|%2[eE]|%5c|[a%]){0,24}"#) {
            let normal = String::from_utf8(normalize(path.as_bytes())).unwrap();
            prop_assert!(normal.starts_with('/') && !normal.contains("//"), "{} of /{}", normal, path);
            prop_assert!(normal.split('/').all(|segment| !matches!(segment, "." | "..")), "{} of /{}", normal, path);
        }

        #[test]
        fn a_path_with_valid_escapes_is_normalized_once(path in r"(/|\\|\.|%2[eEfF]|%61|%2541|[0aG]|[!é]){0,24}") {
            let once = normalize(path.as_bytes());
            prop_assert_eq!(normalize(&once[1..]), once);
        }
    }

    #[test]
    fn a_target_without_segments_stays() {
        assert_eq!(&*normalized("*"), b"*");
        assert_eq!(&*normalized(""), b"");
    }
}
