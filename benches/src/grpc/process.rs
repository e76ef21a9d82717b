//! A service in a process of its own, which ends with this one.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::services::Service;
use crate::Failure;
use crate::subjects::RUN;

pub(super) struct Running {
    pub(super) service: Service,
    pub(super) port: u16,
    id: u32,
    _process: Child,
}

impl Running {
    pub(super) async fn start(service: Service, redis: &str) -> Result<Self, Failure> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg("grpc-service")
            .args([service.name(), &RUN, redis])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let output = process.stdout.take().ok_or("no output")?;
        let mut line = String::new();
        tokio::time::timeout(Duration::from_secs(10), BufReader::new(output).read_line(&mut line)).await??;
        let port = line.trim().parse().map_err(|_| format!("{} did not start", service.name()))?;
        let id = process.id().ok_or("the service has ended")?;
        Ok(Self { service, port, id, _process: process })
    }

    /// Returns the CPU time of the process so far. `None` where the system does not report it.
    pub(super) fn cpu(&self) -> Option<Duration> {
        // Of each thread, in nanoseconds: `stat` counts in ticks of 10 ms. Threads that ended are missing; a service
        // starts its threads once.
        let threads = fs::read_dir(format!("/proc/{}/task", self.id)).ok()?;
        let on_cpu = threads.flatten().filter_map(|thread| {
            let statistics = fs::read_to_string(thread.path().join("schedstat")).ok()?;
            statistics.split(' ').next()?.parse::<u64>().ok()
        });
        Some(Duration::from_nanos(on_cpu.sum())).filter(|cpu| !cpu.is_zero())
    }
}
