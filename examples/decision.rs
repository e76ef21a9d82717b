//! Prints one decision with a label for each of its fields. It is the first output that the README shows.
//!
//!     cargo run --example decision

#![allow(clippy::print_stdout, reason = "an example prints")]

use tidegate::{Error, Limiter, Quota, Rate};

/// Labels in the order of the fields. `now_us` is internal.
const LABELS: [(&str, &str); 8] = [
    ("gate", "the name of the gate"),
    ("allowed", "the check is admitted and charged; a denial charges nothing"),
    ("limit", "the number to show to a client"),
    ("remaining", "units left"),
    ("retry_after", "until another check of this cost is allowed: now"),
    ("reset_after", "until the key is in its initial state again"),
    ("delay", "how long to wait before continuing (leaky bucket only)"),
    ("source", "the component that decided"),
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
