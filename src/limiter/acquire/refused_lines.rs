//! Lines that would drop a permit while its work runs, and that the compiler therefore refuses. Each stands beside
//! the right line, which compiles in its place: the wrong one is refused for no other reason.
//!
//! These are examples of rustdoc, since only those can show that a program does not compile.

/// The program around a line.
macro_rules! program {
    ($line:literal) => {
        concat!(
            "
#![deny(unused_must_use)]
use tidegate::{Acquired, Check, Error, Gate, Limiter, Permit};

async fn work() {}
async fn work_with(permit: Permit) { drop(permit) }

async fn run(limiter: Limiter, jobs: Gate, checks: [Check; 2]) -> Result<(), Error> {
",
            $line,
            "
    Ok(())
}
# fn main() {}
"
        )
    };
}

macro_rules! lines {
    ($($name:ident: refused $wrong:literal, right $right:literal;)+) => { $(
        #[doc = concat!("```compile_fail", program!($wrong), "```")]
        #[doc = ""]
        #[doc = concat!("```no_run", program!($right), "```")]
        mod $name {}
    )+ };
}

lines! {
    acquire_whose_result_is_ignored:
        refused r#"jobs.acquire("k").await?; work().await;"#,
        right r#"let Acquired::Admitted(_permit, _) = jobs.acquire("k").await? else { return Ok(()) }; work().await;"#;
    try_acquire_whose_result_is_ignored:
        refused r#"jobs.try_acquire("k").await?; work().await;"#,
        right r#"let Acquired::Admitted(_permit, _) = jobs.try_acquire("k").await? else { return Ok(()) }; work().await;"#;
    acquire_all_whose_result_is_ignored:
        refused "limiter.acquire_all(checks).await?; work().await;",
        right "let Acquired::Admitted(_permits, _) = limiter.acquire_all(checks).await? else { return Ok(()) }; work().await;";
    question_to_the_result_of_acquire:
        refused r#"if jobs.acquire("k").await?.is_allowed() { work().await }"#,
        right r#"if let Acquired::Admitted(_permit, _) = jobs.acquire("k").await? { work().await }"#;
    question_to_the_result_of_try_acquire:
        refused r#"if jobs.try_acquire("k").await?.is_some() { work().await }"#,
        right r#"if let Acquired::Admitted(_permit, _) = jobs.try_acquire("k").await? { work().await }"#;
    question_to_the_result_of_acquire_all:
        refused "if limiter.acquire_all(checks).await?.is_allowed() { work().await }",
        right "if let Acquired::Admitted(_permits, _) = limiter.acquire_all(checks).await? { work().await }";
    question_to_the_decision:
        refused r#"if jobs.acquire("k").await?.decision().is_allowed() { work().await }"#,
        right r#"if let Acquired::Admitted(_permit, decision) = jobs.acquire("k").await? { println!("{decision}"); work().await }"#;
    decision_in_place_of_the_permit:
        refused r#"if let Acquired::Admitted(_, decision) = jobs.acquire("k").await? { work_with(decision).await }"#,
        right r#"if let Acquired::Admitted(permit, _) = jobs.acquire("k").await? { work_with(permit).await }"#;
    permit_after_its_release:
        refused r#"if let Acquired::Admitted(permit, _) = jobs.acquire("k").await? { permit.release().await?; println!("{}", permit.units()) }"#,
        right r#"if let Acquired::Admitted(permit, _) = jobs.acquire("k").await? { println!("{}", permit.units()); permit.release().await? }"#;
    permits_after_their_release:
        refused r#"if let Acquired::Admitted(permits, _) = limiter.acquire_all(checks).await? { permits.release().await?; println!("{}", permits.units()) }"#,
        right r#"if let Acquired::Admitted(permits, _) = limiter.acquire_all(checks).await? { println!("{}", permits.units()); permits.release().await? }"#;
}
