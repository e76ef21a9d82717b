//! Base64 with the URL-safe alphabet, without padding (RFC 4648, section 5). A text decodes only if it is the one
//! encoding of its bytes.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

pub(super) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let bits = (0..3).fold(0_u32, |bits, at| bits << 8 | u32::from(chunk.get(at).copied().unwrap_or(0)));
        let letters = (0..=chunk.len()).map(|at| ALPHABET[(bits >> (18 - 6 * at) & 63) as usize]);
        text.extend(letters.map(char::from));
    }
    text
}

/// Returns `None` if [`encode`] returns this text for no bytes.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for chunk in text.as_bytes().chunks(4) {
        let bits = chunk.iter().try_fold(0_u32, |bits, &letter| Some(bits << 6 | value_of(letter)?))?;
        let bits = bits << (6 * (4 - chunk.len()));
        // One letter is less than a byte.
        let whole = Some(chunk.len() - 1).filter(|&whole| whole > 0)?;
        let [_, three @ ..] = bits.to_be_bytes();
        if three[whole..].iter().any(|&rest| rest != 0) {
            return None;
        }
        bytes.extend_from_slice(&three[..whole]);
    }
    Some(bytes)
}

const fn value_of(letter: u8) -> Option<u32> {
    let value = match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'-' => 62,
        b'_' => 63,
        _ => return None,
    };
    Some(value as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_texts() {
        let known = [("", ""), ("f", "Zg"), ("fo", "Zm8"), ("foo", "Zm9v"), ("foob", "Zm9vYg")];
        for (bytes, text) in known.into_iter().chain([("fooba", "Zm9vYmE"), ("foobar", "Zm9vYmFy")]) {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).unwrap(), bytes.as_bytes());
        }
        assert_eq!(encode(&[0xfb, 0xff, 0xfe]), "-__-");
    }

    #[test]
    fn every_byte_string_is_decoded_again() {
        for len in 0..64 {
            let bytes: Vec<u8> = (0..len).map(|_| fastrand::u8(..)).collect();
            assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }
    }

    #[test]
    fn text_that_is_no_encoding_is_rejected() {
        for text in ["Z", "Zm9vY", "Zh", "Zm9", "Zg==", "Zm 9", "Zm9v\n", "+/+/", "é", "Zm9vYh"] {
            assert_eq!(decode(text), None, "{text:?}");
        }
    }

    /// Two texts of one token would pass a check that compares texts.
    #[test]
    fn no_two_texts_of_three_letters_decode_to_the_same_bytes() {
        let letters = || ALPHABET.iter().map(|&letter| char::from(letter));
        let mut decoded = std::collections::HashSet::new();
        for text in letters().flat_map(|a| letters().map(move |b| format!("A{a}{b}"))) {
            if let Some(bytes) = decode(&text) {
                assert!(decoded.insert(bytes), "{text}");
            }
        }
        assert_eq!(decoded.len(), 64 * 16);
    }
}
