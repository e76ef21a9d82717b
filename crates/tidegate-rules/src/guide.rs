//! The guide: limits from files. [`tidegate::guide`] has the pages about the limiter.
//!
//! The module holds no items. Its documentation is a page of `docs/guide`, so the example there is tested.

// `src/guide.rs` of `tidegate` explains the labels.

/// [cli.md]: tidegate::guide#other-pages
#[doc = include_str!("../docs/rules.md")]
pub mod rules {}
