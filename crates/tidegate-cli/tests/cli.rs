//! Tests of the program `tidegate`, run as by an operator or a script, with a real Redis.

mod answers;
mod calendar;
#[cfg(unix)] // the rights of a file
mod changes;
mod cluster;
mod configuration;
mod deployment;
mod docs;
mod failing;
mod from_env;
mod gate_names;
mod hostile;
mod in_flight;
mod malformed;
mod many;
#[cfg(target_os = "linux")] // reads /proc
mod memory;
mod overrides;
mod program;
#[cfg(unix)] // Envoy
mod reference_scripts;
mod regions;
mod rules;
mod secrets;
mod serve;
#[cfg(target_os = "linux")] // reads /proc
mod serve_clients;
mod serve_fleet;
#[cfg(target_os = "linux")]
mod serve_load;
mod serve_process;
mod terminal;
mod top;
mod typos;
