//! Keys in their stored form: printable characters, and others as `%` with two hexadecimal digits. Forms and links carry
//! keys in it, because browsers change text: a form turns LF into CRLF, a text field drops it, and NUL becomes U+FFFD.

use std::fmt::Write;

use tidegate::admin::decoded_key;

/// Returns the stored form of a key, which [`decoded`] reverses. Unlike the form in Redis, it is never a hash or an HMAC.
pub(super) fn encoded(key: &[u8]) -> String {
    let mut form = String::with_capacity(key.len());
    for byte in key {
        if byte.is_ascii_graphic() && *byte != b'%' {
            form.push(char::from(*byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(form, "%{byte:02X}");
        }
    }
    form
}

/// Returns the key of a stored form. `None` for a hash or an HMAC, and if no key has this form.
pub(super) fn decoded(form: &str) -> Option<Vec<u8>> {
    if is_valid(form) { decoded_key(form) } else { None }
}

/// Returns the key of a stored form, if it is text.
pub(super) fn decoded_text(form: &str) -> Option<String> {
    decoded(form).and_then(|key| String::from_utf8(key).ok())
}

/// Returns whether a stored form has only characters that a stored form can have.
pub(super) fn is_valid(form: &str) -> bool {
    form.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Returns a stored form for people.
pub(super) fn shown(form: &str) -> &str {
    if form.is_empty() { "(empty key)" } else { form }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_form_is_printable_and_has_the_same_bytes() {
        let all: Vec<u8> = (0..=255).collect();
        for key in [&all[..], b"", b"bob", b"bob\n", b"bob\0", b"%0A", b" a "] {
            let form = encoded(key);
            assert!(is_valid(&form), "{form}");
            assert_eq!(decoded(&form).as_deref(), Some(key));
        }
        assert_eq!((&*encoded(b"bob\n"), &*encoded("\u{e9}%".as_bytes())), ("bob%0A", "%C3%A9%25"));
    }

    #[test]
    fn form_that_no_key_has_is_not_decoded() {
        for form in ["%hmac=00", "%sha256=00", "%", "%4", "a b", "bob\n", "\u{e9}"] {
            assert_eq!(decoded(form), None, "{form}");
        }
        assert_eq!((decoded_text("%FF"), decoded_text("a%20b").as_deref()), (None, Some("a b")));
    }
}
