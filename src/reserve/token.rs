//! The token of a reservation, as text.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use base64::prelude::{BASE64_URL_SAFE_NO_PAD as BASE64URL, Engine as _};

use super::format::{self, Content};
use crate::error::Error;
use crate::key::reservation_secret::{SIGNATURE_BYTES, Secrets};

/// The longest text that is parsed: above that of any reservation of 128 checks.
const MAX_TEXT: usize = 64 * 1_024;

/// The right to settle a reservation: [`Limiter::commit`](crate::Limiter::commit) and
/// [`Limiter::cancel`](crate::Limiter::cancel). Made by [`Limiter::reserve`](crate::Limiter::reserve).
///
/// Displays as text of the letters `A`-`Z`, `a`-`z`, `0`-`9`, `-` and `_`, which can be stored or sent to another
/// process, and is parsed there by [`FromStr`]. A token with n checks has about 40 + 45 n letters.
///
/// The text contains an id, unpredictable unless [`Reserve::id`](crate::Reserve::id) was given a guessable one, and for
/// each check the gate, its quota and the key as written in Redis.
/// So it is a secret as far as the keys are: store personal keys by [`KeyMode::Hmac`](crate::KeyMode::Hmac). Sign tokens
/// that pass through clients: [`Builder::reservation_secret`](crate::Builder::reservation_secret). `Debug` shows
/// neither the id nor a key.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate::Error> {
/// use tidegate::{Limiter, Quota, Rate, Settlement, Token};
///
/// let limiter = Limiter::in_memory();
/// let tokens = limiter.gate("llm.tokens", Quota::token_bucket(1_000, Rate::per_minute(1_000)));
/// let reserved = limiter.reserve([tokens.key("tenant:7").cost(400)]).await?;
/// let text = reserved.token().unwrap().to_string();
///
/// let token: Token = text.parse()?; // in any process of the namespace
/// assert_eq!(limiter.commit(&token, [120]).await?, [Settlement::Settled]);
/// assert_eq!(tokens.peek("tenant:7").await?.remaining(), 880);
/// assert!("not a token".parse::<Token>().is_err());
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    content: Arc<Content>,
    signature: Option<[u8; SIGNATURE_BYTES]>,
}

impl Token {
    /// Makes the token, and signs it if there is a secret.
    pub(super) fn new(content: Content, secrets: &Secrets) -> Self {
        let content = Content { is_signed: !secrets.is_empty(), ..content };
        let signature = secrets.sign(&format::encode(&content));
        Self { content: Arc::new(content), signature }
    }

    /// Returns an error unless the token was signed with one of the secrets. Without a secret, accepts any token.
    pub(super) fn verify(&self, secrets: &Secrets) -> Result<&Content, Error> {
        let is_valid = secrets.is_empty()
            || self
                .signature
                .is_some_and(|signature| secrets.is_signature_of(&format::encode(&self.content), &signature));
        match is_valid {
            true => Ok(&self.content),
            false => Err(Error::config(
                "the reservation token is not signed with this limiter's reservation_secret: reject it, or set the secret with which it was reserved",
            )),
        }
    }

    /// Returns the number of checks of the reservation: that of the numbers that a commit needs.
    #[must_use]
    pub fn checks(&self) -> usize {
        self.content.items.len()
    }

    /// Returns the name of the gate of each check, in order.
    pub fn gates(&self) -> impl Iterator<Item = &str> {
        self.content.items.iter().map(|item| &*item.gate)
    }
}

/// Displays the text that [`FromStr`] parses.
impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = format::encode(&self.content);
        bytes.extend(self.signature.iter().flatten());
        f.write_str(&BASE64URL.encode(bytes))
    }
}

/// Parses the text of a token. Does not check its signature: the settle does.
impl FromStr for Token {
    type Err = Error;

    /// # Errors
    ///
    /// [`Error::is_config`] if the text is not that of a token, or of a later version.
    fn from_str(text: &str) -> Result<Self, Error> {
        let content = match text.len() {
            0..=MAX_TEXT => BASE64URL.decode(text).map_err(|_| "it is not base64url"),
            _ => Err("it is too long"),
        };
        let token = content.and_then(|mut bytes| {
            let signature = match format::is_signed(&bytes) {
                true => Some(split_signature(&mut bytes).ok_or("it is too short")?),
                false => None,
            };
            Ok(Self { content: Arc::new(format::decode(&bytes)?), signature })
        });
        token.map_err(|why| {
            Error::config(format!(
                "the text is no reservation token ({why}): pass the text that `Token` displays, unchanged"
            ))
        })
    }
}

/// Removes the signature from the end of a token's bytes.
fn split_signature(bytes: &mut Vec<u8>) -> Option<[u8; SIGNATURE_BYTES]> {
    let (rest, signature) = bytes.split_last_chunk()?;
    let (rest, signature) = (rest.len(), *signature);
    bytes.truncate(rest);
    Some(signature)
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("gates", &self.gates().collect::<Vec<_>>())
            .field("is_signed", &self.signature.is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two texts of one token would pass a check that compares texts.
    #[test]
    fn text_that_is_not_the_one_encoding_of_its_bytes_is_rejected() {
        for text in ["Z", "Zm9vY", "Zh", "Zm9", "Zg==", "Zm 9", "Zm9v\n", "+/+/", "é", "Zm9vYh"] {
            let error = text.parse::<Token>().unwrap_err().to_string();
            assert!(error.contains("it is not base64url"), "{text:?}: {error}");
        }
        let error = "-__-".parse::<Token>().unwrap_err().to_string();
        assert!(!error.contains("it is not base64url"), "{error}");
    }
}
