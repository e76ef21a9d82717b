//! Random numbers that nobody can guess.

/// Fills the bytes from the operating system.
///
/// # Panics
///
/// If the operating system has no random numbers: then no secret can be made.
pub(crate) fn random_bytes(bytes: &mut [u8]) {
    #[allow(clippy::expect_used, reason = "without random numbers, no request may be answered")]
    getrandom::fill(bytes).expect("the operating system has random numbers");
}
