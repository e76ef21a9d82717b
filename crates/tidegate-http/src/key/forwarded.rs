//! `Forwarded` (RFC 7239), read from its end.
//!
//! The nearest proxy wrote the last element. The text before it is not trusted. Elements are therefore split
//! from the right:
//!
//! - A quote that a client opened and never closed cannot swallow the element that a proxy appended.
//! - A comma inside a proxy's own quotes does not end its element.

use std::net::IpAddr;

use super::address;

/// Splits a header value into the part before its last element, if there is one, and that element.
pub(super) fn split_last(value: &[u8]) -> (Option<&[u8]>, &[u8]) {
    let mut is_quoted = false;
    let mut end = value.len();
    while let Some(index) = value[..end].iter().rposition(|byte| matches!(byte, b',' | b'"')) {
        end = index;
        match value[index] {
            b'"' if is_quoted && is_escaped(&value[..index]) => {}
            b'"' => is_quoted = !is_quoted,
            _ if is_quoted => {}
            _ => return (Some(&value[..index]), &value[index + 1..]),
        }
    }
    (None, value)
}

/// Returns whether the byte after `before` is escaped by its last backslash. The total work is linear, since
/// each run of backslashes ends at one quote.
fn is_escaped(before: &[u8]) -> bool {
    before.iter().rev().take_while(|&&byte| byte == b'\\').count() % 2 == 1
}

/// Returns the address in an element's `for`. Returns `None` if the element has none or two of them, or is
/// not well-formed, or if the value is `unknown`, obfuscated or not an address.
pub(super) fn address_of(element: &[u8]) -> Option<IpAddr> {
    let mut node = None;
    let mut rest = element;
    loop {
        rest = rest.trim_ascii_start();
        if !matches!(rest, [] | [b';', ..]) {
            let (name, value, after) = pair(rest)?;
            if name.eq_ignore_ascii_case(b"for") && node.replace(value).is_some() {
                return None;
            }
            rest = after.trim_ascii_start();
        }
        match rest {
            [] => break,
            [b';', after @ ..] => rest = after,
            _ => return None,
        }
    }
    address::node_name(&node?)
}

/// Parses `name=value`. Returns the name, the value without its quotes, and the rest.
fn pair(text: &[u8]) -> Option<(&[u8], Vec<u8>, &[u8])> {
    let (name, rest) = token(text)?;
    let rest = rest.strip_prefix(b"=")?;
    match rest.strip_prefix(b"\"") {
        Some(quoted) => unquote(quoted).map(|(value, after)| (name, value, after)),
        None => token(rest).map(|(value, after)| (name, value.to_vec(), after)),
    }
}

fn token(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let is_token_byte = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let length = text.iter().position(|byte| !is_token_byte(byte)).unwrap_or(text.len());
    (length > 0).then(|| text.split_at(length))
}

/// Parses the text after an opening quote. Returns the unescaped value, and the rest after the closing quote.
fn unquote(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut value = Vec::new();
    let mut bytes = text.iter().enumerate();
    while let Some((index, &byte)) = bytes.next() {
        match byte {
            b'"' => return Some((value, &text[index + 1..])),
            b'\\' => value.push(*bytes.next()?.1),
            _ => value.push(byte),
        }
    }
    None
}
