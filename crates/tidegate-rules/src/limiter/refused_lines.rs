//! Lines that would drop the permits of a request while its work runs, and that the compiler therefore refuses. Each
//! stands before the right line, which compiles in its place: the wrong one is refused for no other reason.

/// ```compile_fail
/// #![deny(unused_must_use)]
/// use tidegate::Error;
/// use tidegate_rules::{Descriptor, RulesLimiter};
///
/// async fn run(rules: RulesLimiter, request: [Descriptor<'_>; 1]) -> Result<(), Error> {
///     rules.acquire("shop", &request).await?;
///     Ok(())
/// }
/// # fn main() {}
/// ```
///
/// ```no_run
/// #![deny(unused_must_use)]
/// use tidegate::{Acquired, Error};
/// use tidegate_rules::{Descriptor, RulesLimiter};
///
/// async fn run(rules: RulesLimiter, request: [Descriptor<'_>; 1]) -> Result<(), Error> {
///     let Acquired::Admitted(_permits, _) = rules.acquire("shop", &request).await? else { return Ok(()) };
///     Ok(())
/// }
/// # fn main() {}
/// ```
mod result_that_is_ignored {}

/// ```compile_fail
/// use tidegate::Error;
/// use tidegate_rules::{Descriptor, RulesLimiter};
///
/// async fn work() {}
/// async fn run(rules: RulesLimiter, request: [Descriptor<'_>; 1]) -> Result<(), Error> {
///     if rules.acquire("shop", &request).await?.is_allowed() { work().await }
///     Ok(())
/// }
/// # fn main() {}
/// ```
///
/// ```no_run
/// use tidegate::{Acquired, Error};
/// use tidegate_rules::{Descriptor, RulesLimiter};
///
/// async fn work() {}
/// async fn run(rules: RulesLimiter, request: [Descriptor<'_>; 1]) -> Result<(), Error> {
///     if let Acquired::Admitted(_permits, _) = rules.acquire("shop", &request).await? { work().await }
///     Ok(())
/// }
/// # fn main() {}
/// ```
mod question_to_the_result {}
