//! The servers of a run, and the statistics that they report.

use std::sync::{Mutex, PoisonError};

use redis::Connection;
use tidegate_testkit::Server;

use crate::Failure;
use crate::subjects::RUN;

/// A server of this run.
pub(crate) struct Target {
    server: Server,
    /// `Redis 7.0.15`
    pub(crate) title: String,
    /// Whether the server reports `redis_version` 7.2 or newer.
    pub(crate) is_7_2: bool,
    /// Whether redis-cell is loaded.
    pub(crate) has_cell: bool,
    /// A separate connection for statistics.
    stats: Mutex<Connection>,
}

/// The cost of a round on the server's main thread.
#[derive(Debug, Clone)]
pub(crate) struct Cost {
    pub(crate) cpu_us: f64,
    /// The longest time that one call blocked the thread, as the server reports it. It includes the time for
    /// which the system did not schedule the thread.
    pub(crate) longest_us: Option<f64>,
    /// The 99th percentile of the time per call.
    pub(crate) call_p99_us: Option<f64>,
}

/// The server's counters at the beginning of a round.
#[derive(Debug)]
pub(crate) struct Before {
    cpu_us: f64,
}

impl Target {
    pub(crate) fn new(server: Server) -> Result<Self, Failure> {
        let mut stats = redis::Client::open(server.url())?.get_connection()?;
        let info: String = redis::cmd("INFO").arg("server").query(&mut stats)?;
        let redis = field(&info, "redis_version").unwrap_or("0");
        let title = match field(&info, "valkey_version") {
            Some(version) => format!("Valkey {version}"),
            None => format!("Redis {redis}"),
        };
        let mut numbers = redis.split('.').map(|number| number.parse().unwrap_or(0));
        let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        let cell: redis::Value = redis::cmd("COMMAND").arg("INFO").arg("CL.THROTTLE").query(&mut stats)?;
        let has_cell =
            matches!(&cell, redis::Value::Array(list) if list.iter().any(|info| *info != redis::Value::Nil));
        // Makes the server report the maximum latency. If CONFIG is rejected, the maximum stays unknown.
        let _ = redis::cmd("CONFIG")
            .arg(&["SET", "latency-tracking-info-percentiles", "50 99 100"])
            .query::<()>(&mut stats);
        let is_7_2 = version >= (7, 2);
        Ok(Self { title, is_7_2, has_cell, server, stats: Mutex::new(stats) })
    }

    pub(crate) fn url(&self) -> &str {
        self.server.url()
    }

    pub(crate) fn how(&self) -> String {
        self.server.how()
    }

    pub(crate) fn begin(&self) -> Result<Before, Failure> {
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = redis::cmd("CONFIG").arg("RESETSTAT").query::<()>(&mut stats);
        Ok(Before { cpu_us: cpu_us(&mut stats)? })
    }

    pub(crate) fn end(&self, before: &Before) -> Result<Cost, Failure> {
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        let cpu_us = cpu_us(&mut stats)? - before.cpu_us;
        let info: String = redis::cmd("INFO").arg("latencystats").query(&mut stats)?;
        Ok(Cost { cpu_us, longest_us: slowest(&info, "p100="), call_p99_us: slowest(&info, "p99=") })
    }

    /// Returns the user CPU time of the main thread since its start, in µs: without the time for the sockets.
    pub(crate) fn user_us(&self) -> Result<f64, Failure> {
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        let info: String = redis::cmd("INFO").arg("cpu").query(&mut stats)?;
        let seconds = field(&info, "used_cpu_user_main_thread").and_then(|text| text.parse::<f64>().ok());
        Ok(1e6 * seconds.ok_or("no used_cpu_user_main_thread in INFO")?)
    }

    /// Returns how often the server has run a command.
    #[cfg(feature = "regions")]
    pub(crate) fn calls(&self, command: &str) -> Result<u64, Failure> {
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        let info: String = redis::cmd("INFO").arg("commandstats").query(&mut stats)?;
        let calls = field(&info, &format!("cmdstat_{command}"))
            .and_then(|stats| stats.strip_prefix("calls=")?.split(',').next()?.parse().ok());
        Ok(calls.unwrap_or(0))
    }

    /// Returns the CPU time of the main thread since its start.
    #[cfg(any(feature = "regions", feature = "serve"))]
    pub(crate) fn main_thread_cpu(&self) -> Result<std::time::Duration, Failure> {
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(std::time::Duration::from_secs_f64(cpu_us(&mut stats)? / 1e6))
    }

    /// Removes this run's keys. Needed on a server that outlives the run.
    pub(crate) fn clean(&self) -> Result<(), Failure> {
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        let mut cursor = 0_u64;
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(format!("{}*", *RUN)).arg("COUNT").arg(1000);
            let (next, keys): (u64, Vec<String>) = scan.query(&mut stats)?;
            if !keys.is_empty() {
                redis::cmd("UNLINK").arg(keys).query::<()>(&mut stats)?;
            }
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }

    pub(crate) fn used_memory(&self) -> Result<u64, Failure> {
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        let info: String = redis::cmd("INFO").arg("memory").query(&mut stats)?;
        Ok(field(&info, "used_memory")
            .and_then(|bytes| bytes.parse().ok())
            .ok_or("no used_memory in INFO")?)
    }

    pub(crate) fn memory_usage(&self, key: &str) -> Result<u64, Failure> {
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(redis::cmd("MEMORY").arg(&["USAGE", key, "SAMPLES", "0"]).query(&mut stats)?)
    }
}

/// Returns the CPU time of the main thread, which runs the scripts. Falls back to the whole process if the
/// server does not report threads separately.
fn cpu_us(stats: &mut Connection) -> Result<f64, Failure> {
    let info: String = redis::cmd("INFO").arg("cpu").query(stats)?;
    let seconds = |name: &str| field(&info, name).and_then(|seconds| seconds.parse::<f64>().ok());
    let both = |kind: &str| {
        Some(seconds(&format!("used_cpu_sys{kind}"))? + seconds(&format!("used_cpu_user{kind}"))?)
    };
    Ok(1e6 * both("_main_thread").or_else(|| both("")).ok_or("no used_cpu_sys in INFO")?)
}

/// Returns a percentile of the slowest command, from lines such as
/// `latency_percentiles_usec_evalsha:p50=1.003,p99=2.007,p100=11.007`.
fn slowest(info: &str, percentile: &str) -> Option<f64> {
    let ours = |line: &&str| !line.contains("usec_info:") && !line.contains("usec_config");
    info.lines()
        .filter(ours)
        .filter_map(|line| line.split_once(percentile)?.1.split(',').next()?.trim().parse().ok())
        .max_by(f64::total_cmp)
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowest_call_excludes_statistics_commands() {
        let info = "# Latencystats\r\n\
            latency_percentiles_usec_info:p50=1.003,p99=2.007,p100=99.007\r\n\
            latency_percentiles_usec_evalsha:p50=1.003,p99=2.007,p100=11.007\r\n\
            latency_percentiles_usec_get:p50=1.003,p99=2.007,p100=3.007\r\n";
        assert_eq!(slowest(info, "p100="), Some(11.007));
        assert_eq!(slowest(info, "p99="), Some(2.007));
        assert_eq!(slowest("", "p99="), None);
    }
}
