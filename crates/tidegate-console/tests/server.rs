//! Servers and requests, as the tests of `tidegate-server` have them.
#![allow(dead_code, reason = "these tests need some of it")]

#[path = "../../tidegate-server/tests/server/admin_fixture.rs"]
pub mod admin_fixture;
#[path = "../../tidegate-server/tests/server/fixture.rs"]
pub mod fixture;
#[path = "../../tidegate-server/tests/server/v1/fixture.rs"]
pub mod v1_fixture;
