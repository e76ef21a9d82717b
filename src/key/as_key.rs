//! Types that can be a key.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use crate::error::redact::RedactedKey;

/// A value that can be a key: the user, address or tenant that a limit counts for.
///
/// Text and bytes are used unchanged. An integer is its decimal text, so `42`, `42_u64` and `"42"` are the
/// same key. None of them needs an allocation. References, `Box`, `Rc`, `Arc` and `Cow` of a key are keys
/// too.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate::Error> {
/// use tidegate::{AsKey, KeyBytes, Limiter, Quota, Rate};
///
/// struct UserId(u64);
///
/// impl AsKey for UserId {
///     fn as_key(&self) -> KeyBytes<'_> {
///         self.0.as_key()
///     }
/// }
///
/// let api = Limiter::in_memory().gate("api", Quota::token_bucket(4, Rate::per_minute(4)));
/// assert_eq!(api.check("42").await?.remaining(), 3);
/// assert_eq!(api.check(42).await?.remaining(), 2);
/// assert_eq!(api.check(42_u64.to_string()).await?.remaining(), 1);
/// assert_eq!(api.check(UserId(42)).await?.remaining(), 0);
/// # Ok(()) }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key",
    label = "expected text, bytes or an integer",
    note = "if the type holds text or bytes, pass those: `&value[..]`, `value.as_str()`, `value.as_bytes()`",
    note = "if it can be displayed, pass `value.to_string()`; if it is yours, implement `tidegate::AsKey` for it"
)]
pub trait AsKey {
    /// Returns the bytes of the key.
    fn as_key(&self) -> KeyBytes<'_>;
}

/// The bytes of a key: borrowed, or the decimal text of an integer, held without an allocation.
///
/// Made from `&str` and `&[u8]` by [`From`], and by [`AsKey::as_key`].
#[derive(Clone, Copy)]
pub struct KeyBytes<'a>(Repr<'a>);

#[derive(Clone, Copy)]
enum Repr<'a> {
    Borrowed(&'a [u8]),
    Decimal(Decimal),
}

/// `-170141183460469231731687303715884105728` has 40 characters; no integer has more.
const MAX_DIGITS: usize = 40;

#[derive(Clone, Copy)]
struct Decimal {
    /// The text is at the end of the array.
    text: [u8; MAX_DIGITS],
    start: u8,
}

impl Decimal {
    fn new(magnitude: u128, is_negative: bool) -> Self {
        let mut decimal = Self { text: [0; MAX_DIGITS], start: MAX_DIGITS as u8 };
        let mut rest = magnitude;
        // Division of 64 bits is several times as fast, and nearly every integer fits.
        let mut rest = loop {
            match u64::try_from(rest) {
                Ok(rest) => break rest,
                Err(_) => {
                    decimal.prepend(b'0' + (rest % 10) as u8);
                    rest /= 10;
                }
            }
        };
        loop {
            decimal.prepend(b'0' + (rest % 10) as u8);
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if is_negative {
            decimal.prepend(b'-');
        }
        decimal
    }

    fn prepend(&mut self, byte: u8) {
        self.start -= 1;
        self.text[usize::from(self.start)] = byte;
    }
}

impl Deref for KeyBytes<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Borrowed(bytes) => bytes,
            Repr::Decimal(decimal) => &decimal.text[usize::from(decimal.start)..],
        }
    }
}

impl AsRef<[u8]> for KeyBytes<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl<'a> From<&'a [u8]> for KeyBytes<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self(Repr::Borrowed(bytes))
    }
}

impl<'a> From<&'a str> for KeyBytes<'a> {
    fn from(text: &'a str) -> Self {
        Self(Repr::Borrowed(text.as_bytes()))
    }
}

impl<'a> From<KeyBytes<'a>> for Cow<'a, [u8]> {
    fn from(key: KeyBytes<'a>) -> Self {
        match key.0 {
            Repr::Borrowed(bytes) => Cow::Borrowed(bytes),
            Repr::Decimal(_) => Cow::Owned(key.to_vec()),
        }
    }
}

/// Shows the key's length and at most its first two bytes: keys can be personal data.
impl fmt::Debug for KeyBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        RedactedKey::new(self).fmt(f)
    }
}

macro_rules! bytes {
    ($($(#[$attribute:meta])* [$($generics:tt)*] $type:ty;)*) => {
        $($(#[$attribute])* impl<$($generics)*> AsKey for $type {
            #[inline]
            fn as_key(&self) -> KeyBytes<'_> {
                KeyBytes(Repr::Borrowed(AsRef::<[u8]>::as_ref(self)))
            }
        })*
    };
}

// Not implemented for all of `AsRef<[u8]>`: the standard library may implement that for an integer in future,
// so the compiler rejects both at once.
bytes! {
    [] str;
    [] String;
    [] [u8];
    [const N: usize] [u8; N];
    [] Vec<u8>;
    [] KeyBytes<'_>;
    #[cfg(feature = "http")] [] bytes::Bytes;
    #[cfg(feature = "http")] [] bytes::BytesMut;
    #[cfg(feature = "http")] [] http::HeaderName;
    #[cfg(feature = "http")] [] http::HeaderValue;
}

macro_rules! pointers {
    ($([$($generics:tt)*] $type:ty;)*) => {
        $(impl<$($generics)*> AsKey for $type {
            #[inline]
            fn as_key(&self) -> KeyBytes<'_> {
                (**self).as_key()
            }
        })*
    };
}

pointers! {
    [T: AsKey + ?Sized] &T;
    [T: AsKey + ?Sized] &mut T;
    [T: AsKey + ?Sized] Box<T>;
    [T: AsKey + ?Sized] Rc<T>;
    [T: AsKey + ?Sized] Arc<T>;
    [T: AsKey + ToOwned + ?Sized] Cow<'_, T>;
}

macro_rules! integers {
    ($($type:ty)*; |$value:ident| $decimal:expr) => {
        $(impl AsKey for $type {
            #[inline]
            #[allow(clippy::unnecessary_cast, reason = "one of the types is u128 itself")]
            fn as_key(&self) -> KeyBytes<'_> {
                let $value = *self;
                KeyBytes(Repr::Decimal($decimal))
            }
        })*
    };
}

integers! { u8 u16 u32 u64 u128 usize; |value| Decimal::new(value as u128, false) }
integers! { i8 i16 i32 i64 i128 isize; |value| Decimal::new(value.unsigned_abs() as u128, value < 0) }

#[cfg(test)]
mod tests {
    use super::*;

    fn text(key: impl AsKey) -> String {
        String::from_utf8(key.as_key().to_vec()).unwrap()
    }

    #[test]
    fn an_integer_is_its_decimal_text() {
        macro_rules! check {
            ($($type:ident)*) => {
                $(for value in [$type::MIN, $type::MAX, 0, 1, 9, 10, 99, 100, $type::MAX / 2, $type::MIN / 2] {
                    assert_eq!(text(value), value.to_string());
                })*
            };
        }
        check! { u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize }
        let max = u128::from(u64::MAX);
        for value in [max - 1, max, max + 1, max * 10, max * 10 + 9] {
            assert_eq!(text(value), value.to_string());
        }
        for value in (0..128).map(|shift| i128::MIN >> shift) {
            assert_eq!(text(value), value.to_string());
        }
    }

    #[test]
    fn text_and_bytes_are_used_unchanged() {
        let bytes: &[u8] = b"user:42";
        assert_eq!(text("user:42"), "user:42");
        assert_eq!(text(bytes), "user:42");
        assert_eq!(text("user:42".as_key()), "user:42");
        assert_eq!(text(KeyBytes::from("user:42")), "user:42");
        assert_eq!(text(KeyBytes::from(bytes)), "user:42");
        assert_eq!(Cow::from("user:42".as_key()), bytes);
        assert_eq!(Cow::from(42.as_key()), &b"42"[..]);
    }

    #[test]
    fn debug_output_does_not_show_a_whole_key() {
        assert_eq!(format!("{:?}", "user:42:secret".as_key()), "\"us…\" (14 bytes)");
        assert_eq!(format!("{:?}", 1_234_567.as_key()), "\"…\" (7 bytes)");
    }
}
