//! Rules loaded from files.

mod beyond;
#[cfg(feature = "cluster")]
mod cluster;
mod config_errors;
mod examples;
mod loading;
mod matching;
mod reloading;
#[cfg(target_os = "linux")] // reads /proc
mod under_load;
