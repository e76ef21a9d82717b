//! Limits from files.

mod beyond;
mod examples;
mod loading;
mod matching;
mod mistakes;
mod reloading;
