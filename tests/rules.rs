//! Limits from files.

mod beyond;
#[cfg(feature = "cluster")]
mod cluster;
mod examples;
mod loading;
mod matching;
mod mistakes;
mod reloading;
#[cfg(target_os = "linux")] // by what /proc tells of a process
mod under_load;
