//! What a limit costs a service: one without, with tidegate's layer, and with its peers', each a process
//! of its own before the same Redis, asked over real connections in interleaved rounds.

mod load;
mod serve;
mod table;

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use self::load::Round;
pub(crate) use self::serve::{Pattern, Service, serve};
pub(crate) use self::table::table;
use crate::report::rounded;
use crate::rounds::median;
use crate::server::Target;
use crate::{Failure, Length, progress};

/// How many connections ask at once.
const CONNECTIONS: [usize; 2] = [64, 256];

/// A pattern of asking by so many connections, and what each service did.
#[derive(Debug)]
pub(crate) struct Case {
    pattern: Pattern,
    connections: usize,
    rows: Vec<(Service, Vec<Round>)>,
}

/// How one compares to another; the median of the rounds' own ratios.
#[derive(Debug)]
pub(crate) struct Ratio {
    name: String,
    is: f64,
    aim: f64,
}

pub(crate) async fn run(target: &Target, rounds: usize, length: Length) -> Result<Vec<Case>, Failure> {
    let mut cases = Vec::new();
    for pattern in Pattern::ALL {
        let mut running = Vec::new();
        for service in Service::ALL {
            running.push(Running::start(service, target.url(), pattern).await?);
        }
        for connections in CONNECTIONS {
            let mut rows: Vec<_> = Service::ALL.iter().map(|&service| (service, Vec::new())).collect();
            for round in 0..rounds {
                for turn in 0..running.len() {
                    let index = (round + turn) % running.len();
                    let Running { service, port, .. } = &running[index];
                    progress(&format!(
                        "{connections} connections, round {} of {rounds}: {service:?}",
                        round + 1
                    ));
                    let round = load::round(*port, pattern, connections, length).await?;
                    wrong(*service, pattern, &round)?;
                    rows[index].1.push(round);
                }
            }
            cases.push(Case { pattern, connections, rows });
        }
    }
    progress("");
    Ok(cases)
}

/// A service in a process of its own, which ends when this one does.
struct Running {
    service: Service,
    port: u16,
    _process: Child,
}

impl Running {
    async fn start(service: Service, redis: &str, pattern: Pattern) -> Result<Self, Failure> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg("serve")
            .args([service.name(), pattern.name(), redis])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let said = process.stdout.take().ok_or("no output")?;
        let mut line = String::new();
        tokio::time::timeout(Duration::from_secs(10), BufReader::new(said).read_line(&mut line)).await??;
        let port = line.trim().parse().map_err(|_| format!("{} did not start", service.name()))?;
        Ok(Self { service, port, _process: process })
    }
}

/// A service that does something else than it is measured for has no figures.
fn wrong(service: Service, pattern: Pattern, round: &Round) -> Result<(), Failure> {
    let name = service.name();
    if round.failed > 0 {
        return Err(format!("{name}: {} answers were neither 200 nor 429", round.failed).into());
    }
    let is_limited = service != Service::Unlimited;
    match pattern {
        Pattern::Unlike if round.denied > 0 => {
            Err(format!("{name} denied under a limit that is wider").into())
        }
        Pattern::Hot if is_limited && round.passed * 10 > round.denied => {
            Err(format!("{name} let {} pass and denied {}", round.passed, round.denied).into())
        }
        _ => Ok(()),
    }
}

impl Case {
    fn rounds(&self, service: Service) -> &[Round] {
        self.rows.iter().find(|(other, _)| *other == service).map_or(&[], |(_, rounds)| rounds)
    }

    fn over(&self, service: Service, other: Service) -> f64 {
        let pairs = self.rounds(service).iter().zip(self.rounds(other));
        median(pairs.map(|(a, b)| a.per_second() / b.per_second()).collect())
    }

    /// To the best peer that asks Redis, and to the service without limits.
    fn ratios(&self) -> Vec<Ratio> {
        let peers = Service::ALL.into_iter().filter(|service| service.is_peer_on_redis());
        let best = peers.map(|peer| self.over(Service::Tidegate, peer)).fold(f64::INFINITY, f64::min);
        let name = |of: &str| format!("http_{}_{}_{of}", self.pattern.name(), self.connections);
        let half = if self.pattern == Pattern::Hot { 0.5 } else { 0.0 };
        vec![
            Ratio { name: name("vs_best_redis_peer"), is: best, aim: 1.5 },
            Ratio {
                name: name("vs_unlimited"),
                is: self.over(Service::Tidegate, Service::Unlimited),
                aim: half,
            },
        ]
    }
}

pub(crate) fn json(cases: &[Case]) -> Value {
    let rows = cases.iter().flat_map(|case| {
        case.rows.iter().map(|(service, rounds)| {
            let us = |quantile| median(rounds.iter().map(|round| round.us(quantile)).collect());
            json!({
                "case": case.pattern.name(),
                "connections": case.connections,
                "subject": service.name(),
                "requests_per_s": median(rounds.iter().map(Round::per_second).collect()).round(),
                "p50_us": rounded(us(0.5)),
                "p99_us": rounded(us(0.99)),
            })
        })
    });
    let ratios = cases.iter().flat_map(Case::ratios).map(|ratio| (ratio.name, json!(rounded(ratio.is))));
    json!({
        "rows": rows.collect::<Vec<_>>(),
        "ratios": ratios.collect::<serde_json::Map<_, _>>(),
    })
}
