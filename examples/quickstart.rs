//! Four checks of a limit of three; then a check of two limits together.
//!
//! ```text
//! $ cargo run --example quickstart
//! in memory, since TIDEGATE_REDIS_URL is not set
//! login: allowed, 2 of 3 left
//! login: allowed, 1 of 3 left
//! login: allowed, 0 of 3 left
//! login: denied, retry after 20s
//! post: allowed by both limits
//! post: denied by posts.user, retry after 10s
//! ```
//!
//! Prefix `TIDEGATE_REDIS_URL=redis://127.0.0.1:6379` to use that Redis instead of memory.
#![allow(clippy::print_stdout, reason = "a program for the command line")]

use std::time::Duration;

use tidegate::{Error, Limiter, Quota, Rate};

const LOGIN: Quota = Quota::token_bucket(3, Rate::per_minute(3));
const POSTS: Quota = Quota::sliding_log(1, Duration::from_secs(10));
const ALL_POSTS: Quota = Quota::token_bucket(1_000, Rate::per_second(100));

#[tokio::main]
async fn main() -> Result<(), Error> {
    let limiter = if let Ok(url) = std::env::var("TIDEGATE_REDIS_URL") {
        println!("in Redis, at TIDEGATE_REDIS_URL");
        Limiter::builder().url(&url).namespace("quickstart").build()?
    } else {
        println!("in memory, since TIDEGATE_REDIS_URL is not set");
        Limiter::in_memory()
    };
    let login = limiter.gate("login", LOGIN);
    let user = limiter.gate("posts.user", POSTS);
    let all = limiter.gate("posts.all", ALL_POSTS);
    // Redis may hold the state of an earlier run.
    login.reset("user:42").await?;
    user.reset("user:42").await?;

    for _ in 1..=4 {
        let decision = login.check("user:42").await?;
        if decision.is_allowed() {
            println!("login: allowed, {} of {} left", decision.remaining(), decision.limit());
        } else {
            println!("login: denied, retry after {:.0?}", decision.retry_after());
        }
    }
    for _ in 1..=2 {
        // Charges both limits, or neither.
        let decision = limiter.check_all([user.key("user:42"), all.key("")]).await?;
        if decision.is_allowed() {
            println!("post: allowed by both limits");
        } else {
            let binding = decision.binding();
            println!("post: denied by {}, retry after {:.0?}", binding.gate(), binding.retry_after());
        }
    }
    Ok(())
}
