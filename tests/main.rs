//! All integration tests, in one binary: linked once, sharing one Redis.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]
#![allow(unreachable_pub, reason = "nothing here is reached from outside")]

mod architecture;
mod bad_input;
mod behaviour;
mod demo;
mod doubles;
mod fixture;
mod keys;
mod noscript;
mod observer;
mod processes;
mod support;
mod waiting;
