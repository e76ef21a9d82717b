//! One decision, with a label for each of its fields: the first thing that the
//! README shows.
//!
//!     cargo run --example decision

#![allow(clippy::print_stdout, reason = "an example prints")]

use tidegate::{Error, Limiter, Quota, Rate};

/// In the order of the fields; `now_us` is not for users.
const LABELS: [(&str, &str); 8] = [
    ("gate", "which gate was asked"),
    ("allowed", "it may pass, and is charged; a denial charges nothing"),
    ("limit", "the number to show to a client"),
    ("remaining", "units left"),
    ("retry_after", "until another ask of this cost passes: now"),
    ("reset_after", "until the key is as if it had never been asked for"),
    ("delay", "how long to wait before going on (leaky bucket only)"),
    ("source", "who decided"),
];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let login = Limiter::in_memory().gate("login", Quota::token_bucket(5, Rate::per_minute(5)));
    let shown = format!("{:#?}", login.check("user:42").await?);
    println!("Decision {{");
    for (field, label) in LABELS {
        let line = shown.lines().find(|line| line.trim_start().starts_with(&format!("{field}: ")));
        println!("{:<24} ◂── {label}", line.unwrap_or_default());
    }
    println!("    …\n}}");
    Ok(())
}
