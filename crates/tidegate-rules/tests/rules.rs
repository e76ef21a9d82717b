//! Rules loaded from files.

mod bans;
mod beyond;
mod calendar;
mod candidates;
mod cluster;
mod config_errors;
mod denied_charges;
mod descriptor_limits;
mod envoy_files;
mod examples;
#[cfg(unix)] // FIFOs, devices, sockets and links
mod hostile_files;
mod hostile_text;
mod in_flight;
mod loading;
mod matching;
mod networks;
mod partial_grants;
mod quotas;
mod reloaded_gates;
mod reloading;
#[cfg(target_os = "linux")] // reads /proc
mod under_load;
mod used_charges;
mod warnings;
#[cfg(feature = "calendar")]
mod what_goes_with_what;
