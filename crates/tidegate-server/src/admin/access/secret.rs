//! Secrets of this process: session ids and CSRF tokens.

use std::fmt::Write;

use subtle::ConstantTimeEq;

/// Returns 256 bits from the operating system, as 64 hexadecimal digits.
///
/// # Panics
///
/// If the operating system has no random numbers: then no secret can be made.
pub(super) fn secret() -> String {
    let mut bytes = [0; 32];
    #[allow(clippy::expect_used, reason = "without random numbers, no request may be answered")]
    getrandom::fill(&mut bytes).expect("the operating system has random numbers");
    hex(&bytes)
}

pub(in crate::admin) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Compares secrets in a time that does not depend on their content.
pub(super) fn is_same_secret(a: &[u8], b: &[u8]) -> bool {
    a.ct_eq(b).into()
}
