//! All integration tests, in one binary: linked once, sharing one Redis.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod architecture;
mod bad_input;
mod doubles;
mod fixture;
mod keys;
mod noscript;
mod observer;
mod processes;
mod smoke;
mod waiting;
