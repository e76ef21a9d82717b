//! All integration tests, in one binary, which is linked once. The tests share one Redis.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue should panic")]
#![allow(unreachable_pub, reason = "nothing here is reached from outside")]

mod console;
mod server;

use tidegate_test_support as support;
