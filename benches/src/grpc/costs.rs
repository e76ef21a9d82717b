//! Counts instructions and allocations of the services per decision, under valgrind. Unlike times, they do not depend on
//! other load of the machine.

use std::fmt::Write;
use std::process::{Command as Program, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use super::load::{self, Pattern};
use super::services::Service;
use crate::server::Target;
use crate::subjects::RUN;
use crate::{Failure, progress};

/// Requests of two runs: the difference of their counts is that of the requests alone.
const REQUESTS: [u64; 2] = [2_000, 8_000];
/// Valgrind is about 50 times slower than the machine.
const START: Duration = Duration::from_secs(120);

/// The counts of one process.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    instructions: f64,
    allocations: f64,
    bytes: f64,
}

pub(crate) async fn run(target: &Target) -> Result<String, Failure> {
    if Program::new("valgrind").arg("--version").output().is_err() {
        return Err("this needs valgrind".into());
    }
    let mut table = "| keys | service | instructions | allocations | bytes |\n\
         | --- | --- | ---: | ---: | ---: |\n"
        .to_owned();
    for pattern in Pattern::ALL {
        for service in Service::ALL {
            progress(&format!("{}: {}", pattern.name(), service.name()));
            let [few, many] = [
                counts(service, pattern, REQUESTS[0], target).await?,
                counts(service, pattern, REQUESTS[1], target).await?,
            ];
            let requests = (REQUESTS[1] - REQUESTS[0]) as f64;
            writeln!(
                table,
                "| {} | {} | {:.0} | {:.1} | {:.0} |",
                pattern.name(),
                service.name(),
                (many.instructions - few.instructions) / requests,
                (many.allocations - few.allocations) / requests,
                (many.bytes - few.bytes) / requests,
            )?;
        }
    }
    progress("");
    Ok(table)
}

/// Runs a service for this number of requests, with each of the two tools.
async fn counts(
    service: Service,
    pattern: Pattern,
    requests: u64,
    target: &Target,
) -> Result<Counts, Failure> {
    let callgrind = ["--tool=callgrind", "--callgrind-out-file=/dev/null"];
    let instructions =
        number_after(&observe(service, pattern, requests, target, &callgrind).await?, "Collected : ")?;
    let memcheck = ["--tool=memcheck", "--leak-check=no", "--undef-value-errors=no"];
    let heap = observe(service, pattern, requests, target, &memcheck).await?;
    let allocations = number_after(&heap, "total heap usage: ")?;
    let bytes = number_after(&heap, " frees, ")?;
    Ok(Counts { instructions, allocations, bytes })
}

/// Returns the report of valgrind on a service that answers this number of requests.
async fn observe(
    service: Service,
    pattern: Pattern,
    requests: u64,
    target: &Target,
    tool: &[&str],
) -> Result<String, Failure> {
    let mut process = Command::new("valgrind")
        .args(tool)
        .arg(std::env::current_exe()?)
        .arg("grpc-service")
        .args([service.name(), &RUN, target.url()])
        // Valgrind runs one thread at a time. With one worker, fewer counts are of idle threads.
        .env("TOKIO_WORKER_THREADS", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut line = String::new();
    let output = process.stdout.take().ok_or("no output")?;
    tokio::time::timeout(START, BufReader::new(output).read_line(&mut line)).await??;
    let port = line.trim().parse().map_err(|_| format!("{} did not start", service.name()))?;
    load::send(port, pattern, requests).await?;
    // Waiting closes standard input, which ends the service.
    let output = process.wait_with_output().await?;
    let report = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(report) } else { Err(format!("valgrind: {report}").into()) }
}

/// Returns the number after a label: `total heap usage: 1,234 allocs`.
fn number_after(report: &str, label: &str) -> Result<f64, Failure> {
    let number = report.lines().find_map(|line| line.split_once(label)?.1.split(' ').next());
    let number = number.ok_or_else(|| format!("valgrind reported no `{label}`"))?;
    Ok(number.replace(',', "").parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_from_the_report() {
        let report = "==1== Collected : 123456\n==1==   total heap usage: 1,234 allocs, 1,200 frees, 56,789 bytes allocated\n";
        assert_eq!(number_after(report, "Collected : ").unwrap_or_default(), 123_456.0);
        assert_eq!(number_after(report, "total heap usage: ").unwrap_or_default(), 1_234.0);
        assert_eq!(number_after(report, " frees, ").unwrap_or_default(), 56_789.0);
        assert!(number_after(report, "missing").is_err());
    }
}
