//! Keys in their stored form: printable characters, and others as `%` with two hexadecimal digits. Forms and links carry
//! keys in it, because browsers change text: a form turns LF into CRLF, a text field drops it, and NUL becomes U+FFFD.

use std::fmt::Write;

use tidegate::admin::GivenKey;

/// Returns the stored form of a key, which [`GivenKey::stored`] reverses. Unlike the form in Redis, it is never a hash or an HMAC.
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

/// Returns the key of a stored form for people: its text, or the form.
pub(super) fn shown(form: &str) -> String {
    match GivenKey::stored(form) {
        Ok(GivenKey::Plain(key)) if key.is_empty() => "(empty key)".to_owned(),
        Ok(GivenKey::Plain(key)) if std::str::from_utf8(&key).is_ok() => GivenKey::Plain(key).to_string(),
        _ => form.to_owned(),
    }
}

/// Returns a stored form for people: of the URL of a Redis, not the login.
pub(super) fn redacted(form: &str) -> String {
    GivenKey::Stored(form.to_owned()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_form_is_printable_and_has_the_same_bytes() {
        let all: Vec<u8> = (0..=255).collect();
        for key in [&all[..], b"", b"bob", b"bob\n", b"bob\0", b"%0A", b" a "] {
            assert_eq!(GivenKey::stored(&encoded(key)).unwrap(), GivenKey::Plain(key.to_vec()));
        }
        assert_eq!((&*encoded(b"bob\n"), &*encoded("\u{e9}%".as_bytes())), ("bob%0A", "%C3%A9%25"));
    }

    #[test]
    fn key_is_shown_as_its_text_and_one_that_is_no_text_in_its_stored_form() {
        for (form, expected) in [
            ("a%20b", "a b"),
            ("", "(empty key)"),
            ("%FF", "%FF"),
            ("%hmac=00", "%hmac=00"),
            ("%4", "%4"),
            ("a b", "a b"),
            ("redis://:secret@h", "redis://h"),
        ] {
            assert_eq!(shown(form), expected);
        }
    }
}
