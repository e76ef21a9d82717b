//! Measures how much a rate limit costs an HTTP service of axum or actix-web: without a limit, with tidegate's layer,
//! and with its peers' layers. Each service is a process of its own on the same Redis, loaded over real connections in
//! interleaved rounds.

mod load;
mod peers;
mod serve;
mod table;

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use self::load::{Cpu, Round};
use self::serve::Framework;
pub(crate) use self::serve::{Pattern, Service, serve};
pub(crate) use self::table::table;
use crate::report::rounded;
use crate::rounds::median;
use crate::server::Target;
use crate::{Failure, Length, progress};

/// Numbers of concurrent connections.
const CONNECTIONS: [usize; 2] = [64, 256];

/// A request pattern over this many connections, and each service's results.
#[derive(Debug)]
pub(crate) struct Case {
    pattern: Pattern,
    connections: usize,
    rows: Vec<Row>,
}

/// One service in one case.
#[derive(Debug)]
struct Row {
    service: Service,
    rounds: Vec<Round>,
    /// The error, if the service failed. A failed service has no figures.
    failed: Option<String>,
}

/// The ratio of two services: the median of the rounds' ratios.
#[derive(Debug)]
pub(crate) struct Ratio {
    name: String,
    /// `None` if all peers failed.
    is: Option<f64>,
    aim: f64,
}

pub(crate) async fn run(target: &Target, rounds: usize, length: Length) -> Result<Vec<Case>, Failure> {
    let mut cases = Vec::new();
    for pattern in Pattern::ALL {
        let mut running = Vec::new();
        for service in Service::ALL {
            let started = Running::start(service, target.url(), pattern).await;
            running.push(match started {
                Ok(started) => Ok(started),
                Err(error) => Err(failure_of_peer(service, error)?),
            });
        }
        for connections in CONNECTIONS {
            let rows = Service::ALL.into_iter().zip(&running);
            let mut rows: Vec<Row> = rows
                .map(|(service, running)| Row {
                    service,
                    rounds: Vec::new(),
                    failed: running.as_ref().err().cloned(),
                })
                .collect();
            for round in 0..rounds {
                for turn in 0..running.len() {
                    let index = (round + turn) % running.len();
                    let row = &mut rows[index];
                    let (Ok(running), None) = (&running[index], &row.failed) else { continue };
                    let service = running.service;
                    progress(&format!(
                        "{connections} connections, round {} of {rounds}: {service:?}",
                        round + 1
                    ));
                    let measured = running.round(target, pattern, connections, length).await;
                    let measured = measured.and_then(|round| wrong(service, pattern, &round).map(|()| round));
                    match measured {
                        Ok(measured) => row.rounds.push(measured),
                        Err(error) => row.failed = Some(failure_of_peer(service, error)?),
                    }
                }
            }
            cases.push(Case { pattern, connections, rows });
        }
    }
    progress("");
    Ok(cases)
}

/// Returns the text of a peer's failure, which its row shows. A failure of any other service ends the run.
fn failure_of_peer(service: Service, error: Failure) -> Result<String, Failure> {
    if service.is_peer() { Ok(error.to_string()) } else { Err(error) }
}

/// A service in a process of its own, which ends with this process.
struct Running {
    service: Service,
    port: u16,
    process: Child,
}

impl Running {
    async fn start(service: Service, redis: &str, pattern: Pattern) -> Result<Self, Failure> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg("http-service")
            .args([service.name(), pattern.name(), redis])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let output = process.stdout.take().ok_or("no output")?;
        let mut line = String::new();
        tokio::time::timeout(Duration::from_secs(10), BufReader::new(output).read_line(&mut line)).await??;
        let port = line.trim().parse().map_err(|_| format!("{} did not start", service.name()))?;
        Ok(Self { service, port, process })
    }

    /// Measures one round. The CPU times include its warm-up, as the number of requests by which they are divided does.
    async fn round(
        &self,
        redis: &Target,
        pattern: Pattern,
        connections: usize,
        length: Length,
    ) -> Result<Round, Failure> {
        let (before, cpu_before) = (redis.begin()?, self.cpu_us()?);
        let mut round = load::round(self.port, pattern, connections, length).await?;
        let requests = round.sent as f64;
        let service_us = (self.cpu_us()? - cpu_before) / requests;
        round.cpu = Cpu { service_us, redis_us: redis.end(&before)?.cpu_us / requests };
        Ok(round)
    }

    /// Returns the CPU time of the process since its start.
    fn cpu_us(&self) -> Result<f64, Failure> {
        const US_PER_TICK: f64 = 10_000.0; // USER_HZ is 100 on every Linux
        let id = self.process.id().ok_or("the service has ended")?;
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat"))?;
        // utime and stime are the 12th and 13th field after the name, which ends with the last parenthesis.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
        let ticks: Vec<f64> = fields.skip(11).take(2).filter_map(|ticks| ticks.parse().ok()).collect();
        Ok(US_PER_TICK * ticks.iter().sum::<f64>())
    }
}

/// Fails a service that did not do the work to measure, so that it has no figures.
fn wrong(service: Service, pattern: Pattern, round: &Round) -> Result<(), Failure> {
    let name = service.name();
    if round.failed > 0 {
        return Err(format!("{name}: {} answers were neither 200 nor 429", round.failed).into());
    }
    let is_limited = !service.is_unlimited();
    match pattern {
        Pattern::Unlike if round.denied > 0 => {
            Err(format!("{name} denied requests under a limit that admits all").into())
        }
        Pattern::Hot if is_limited && round.passed * 10 > round.denied => {
            Err(format!("{name} let {} pass and denied {}", round.passed, round.denied).into())
        }
        _ => Ok(()),
    }
}

impl Case {
    fn rounds(&self, service: Service) -> &[Round] {
        let row = self.rows.iter().find(|row| row.service == service && row.failed.is_none());
        row.map_or(&[], |row| &row.rounds)
    }

    fn over(&self, service: Service, other: Service) -> Option<f64> {
        let pairs = self.rounds(service).iter().zip(self.rounds(other));
        let ratio = median(pairs.map(|(a, b)| a.per_second() / b.per_second()).collect());
        ratio.is_finite().then_some(ratio)
    }

    fn ratios(&self) -> impl Iterator<Item = Ratio> {
        Framework::ALL.into_iter().flat_map(|framework| self.ratios_of(framework))
    }

    /// Returns the ratios to the best Redis peer that did not fail, and to the service without limits.
    fn ratios_of(&self, framework: Framework) -> [Ratio; 2] {
        let tidegate = framework.tidegate();
        let peers = Service::ALL.into_iter().filter(|service| service.framework() == framework);
        let peers = peers.filter(|service| service.is_peer_on_redis());
        let best = peers.filter_map(|peer| self.over(tidegate, peer)).min_by(f64::total_cmp);
        let (prefix, pattern) = (framework.prefix(), self.pattern.name());
        let name = |of: &str| format!("{prefix}_{pattern}_{}_{of}", self.connections);
        let half = if self.pattern == Pattern::Hot { 0.5 } else { 0.0 };
        let unlimited = self.over(tidegate, framework.unlimited());
        [
            Ratio { name: name("vs_best_redis_peer"), is: best, aim: 1.5 },
            Ratio { name: name("vs_unlimited"), is: unlimited, aim: half },
        ]
    }
}

/// Returns the median of the rounds' CPU times per request.
fn cpu(rounds: &[Round], of: impl Fn(&Cpu) -> f64) -> f64 {
    median(rounds.iter().map(|round| of(&round.cpu)).collect())
}

pub(crate) fn json(cases: &[Case]) -> Value {
    let rows = cases.iter().flat_map(|case| {
        case.rows.iter().map(|Row { service, rounds, failed }| {
            let mut row = json!({
                "case": case.pattern.name(),
                "connections": case.connections,
                "subject": service.name(),
            });
            if let Some(reason) = failed {
                row["failed"] = json!(reason);
                return row;
            }
            let us = |quantile| median(rounds.iter().map(|round| round.us(quantile)).collect());
            row["requests_per_s"] = json!(median(rounds.iter().map(Round::per_second).collect()).round());
            row["p50_us"] = json!(rounded(us(0.5)));
            row["p99_us"] = json!(rounded(us(0.99)));
            row["service_cpu_us"] = json!(rounded(cpu(rounds, |cpu| cpu.service_us)));
            row["redis_cpu_us"] = json!(rounded(cpu(rounds, |cpu| cpu.redis_us)));
            row
        })
    });
    let ratios = cases.iter().flat_map(Case::ratios);
    let ratios = ratios.filter_map(|ratio| Some((ratio.name, json!(rounded(ratio.is?)))));
    json!({
        "rows": rows.collect::<Vec<_>>(),
        "ratios": ratios.collect::<serde_json::Map<_, _>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(service: Service) -> Row {
        Row { service, rounds: Vec::new(), failed: Some("5 answers were neither 200 nor 429".to_owned()) }
    }

    #[test]
    fn failed_peer_has_a_row_with_the_error_and_no_ratio() {
        let rows = vec![failed(Service::TowerRateLimiter), failed(Service::TowerRateLimitRedis)];
        let cases = [Case { pattern: Pattern::Hot, connections: 64, rows }];
        let text = table(&cases);
        assert!(
            text.contains("| tower-rate-limiter | - | - | - | - | - | - | - | **failed**: 5 answers were"),
            "{text}"
        );
        assert!(text.contains("| `http_hot_64_vs_best_redis_peer` | left out: all peers failed |"), "{text}");
        let json = json(&cases);
        assert_eq!(json["rows"][0]["failed"], "5 answers were neither 200 nor 429");
        assert_eq!(json["ratios"], json!({}));
    }

    #[test]
    fn only_peer_failure_becomes_a_row() {
        for service in Service::ALL {
            let kept = failure_of_peer(service, "broken".into());
            let is_own = matches!(
                service,
                Service::Tidegate | Service::Unlimited | Service::ActixTidegate | Service::ActixUnlimited
            );
            assert_eq!(kept.is_ok(), !is_own, "{service:?}");
        }
    }
}
