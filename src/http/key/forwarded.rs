//! `Forwarded` (RFC 7239), read from its end.
//!
//! The last element is the one that the nearest proxy wrote, and what stands left of it may be
//! anything. So elements are found from the right: a quote that a client opened and never closed
//! cannot swallow what a proxy appended, nor can a comma inside a proxy's own quotes end its element.

use std::net::IpAddr;

use super::address;

/// What stands left of the last element, if anything does, and that element.
pub(super) fn split_last(value: &[u8]) -> (Option<&[u8]>, &[u8]) {
    let mut is_quoted = false;
    let mut end = value.len();
    while let Some(place) = value[..end].iter().rposition(|byte| matches!(byte, b',' | b'"')) {
        end = place;
        match value[place] {
            b'"' if is_quoted && is_escaped(&value[..place]) => {}
            b'"' => is_quoted = !is_quoted,
            _ if is_quoted => {}
            _ => return (Some(&value[..place]), &value[place + 1..]),
        }
    }
    (None, value)
}

/// Whether what comes after `before` is escaped by its last backslash. Linear in the whole, since each
/// run of backslashes ends at one quote.
fn is_escaped(before: &[u8]) -> bool {
    before.iter().rev().take_while(|&&byte| byte == b'\\').count() % 2 == 1
}

/// The address of an element's `for`. `None` if it has none or two, if that is `unknown`, obfuscated or
/// no address, or if the element is not well-formed.
pub(super) fn address_of(element: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    let mut rest = element;
    loop {
        rest = rest.trim_ascii_start();
        if !matches!(rest, [] | [b';', ..]) {
            let (name, value, after) = pair(rest)?;
            if name.eq_ignore_ascii_case(b"for") && found.replace(value).is_some() {
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
    address::node_name(&found?)
}

/// `name=value`: the name, the value without its quotes, and what comes after.
fn pair(text: &[u8]) -> Option<(&[u8], Vec<u8>, &[u8])> {
    let (name, rest) = token(text)?;
    let rest = rest.strip_prefix(b"=")?;
    match rest.strip_prefix(b"\"") {
        Some(quoted) => unquote(quoted).map(|(value, after)| (name, value, after)),
        None => token(rest).map(|(value, after)| (name, value.to_vec(), after)),
    }
}

fn token(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let length = text.iter().position(|byte| !is_letter(byte)).unwrap_or(text.len());
    (length > 0).then(|| text.split_at(length))
}

/// What stands between quotes, and what comes after them.
fn unquote(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut value = Vec::new();
    let mut bytes = text.iter().enumerate();
    while let Some((place, &byte)) = bytes.next() {
        match byte {
            b'"' => return Some((value, &text[place + 1..])),
            b'\\' => value.push(*bytes.next()?.1),
            _ => value.push(byte),
        }
    }
    None
}
