//! Measures the rate-limit service: decisions over gRPC per second, per core of the service, and their latency, beside a
//! service that decides nothing and one that is written by hand. Each is a process of its own on the same Redis, loaded
//! over real connections in interleaved rounds.

mod costs;
mod load;
mod process;
mod services;
mod table;

use serde_json::{Value, json};

pub(crate) use self::costs::run as costs;
use self::load::{Pace, Pattern, Round, Shape};
use self::process::Running;
pub(crate) use self::services::{Service, serve};
pub(crate) use self::table::table;
use crate::report::rounded;
use crate::rounds::median;
use crate::server::Target;
use crate::{Failure, Length, progress};

/// A request pattern over these connections, and each service's results.
#[derive(Debug)]
pub(crate) struct Case {
    pattern: Pattern,
    shape: Shape,
    rows: Vec<Row>,
}

/// One service in one case.
#[derive(Debug)]
struct Row {
    service: Service,
    /// As many requests as the service answers.
    saturated: Vec<Round>,
    /// Half as many per second as in the saturated round just before.
    half: Vec<Round>,
}

/// The ratio of two services: the median of the rounds' ratios.
#[derive(Debug)]
pub(crate) struct Ratio {
    name: String,
    /// Of decisions per second.
    per_second: f64,
    /// Of decisions per second of CPU time of the services.
    per_core: f64,
    aim: Option<f64>,
}

pub(crate) async fn run(target: &Target, rounds: usize, length: Length) -> Result<Vec<Case>, Failure> {
    let mut services = Vec::new();
    for service in Service::ALL {
        services.push(Running::start(service, target.url()).await?);
    }
    let mut cases = Vec::new();
    for pattern in Pattern::ALL {
        for shape in Shape::ALL {
            let rows = Service::ALL.map(|service| Row { service, saturated: Vec::new(), half: Vec::new() });
            let mut case = Case { pattern, shape, rows: rows.into() };
            for round in 0..rounds {
                for turn in 0..services.len() {
                    let at = (round + turn) % services.len();
                    let name = services[at].service.name();
                    let Shape { connections, .. } = shape;
                    progress(&format!("{connections} connections, round {} of {rounds}: {name}", round + 1));
                    let saturated = measure(&services[at], &case, Pace::Saturated, length, target).await?;
                    let half = Pace::PerSecond(saturated.per_second() / 2.0);
                    let half = measure(&services[at], &case, half, length, target).await?;
                    case.rows[at].saturated.push(saturated);
                    case.rows[at].half.push(half);
                }
            }
            cases.push(case);
        }
    }
    progress("");
    Ok(cases)
}

/// Measures a service once. A service that did not do the work to measure ends the run.
async fn measure(
    running: &Running,
    case: &Case,
    pace: Pace,
    length: Length,
    target: &Target,
) -> Result<Round, Failure> {
    let usage = || Ok((running.cpu(), target.main_thread_cpu()?));
    let round = load::round(running.port, case.pattern, case.shape, pace, length, usage).await?;
    let name = running.service.name();
    if round.failed > 0 {
        let first = round.first_error.as_deref().unwrap_or("an unknown code");
        return Err(format!("{name}: {} requests failed; the first: {first}", round.failed).into());
    }
    if round.denied > 0 {
        return Err(format!("{name} denied {} requests under a limit that admits all", round.denied).into());
    }
    match round.allowed {
        0 => Err(format!("{name} answered nothing").into()),
        _ => Ok(round),
    }
}

impl Row {
    fn median(&self, of: impl Fn(&Round) -> f64) -> f64 {
        median(self.saturated.iter().map(of).collect())
    }

    fn median_at_half(&self, of: impl Fn(&Round) -> f64) -> f64 {
        median(self.half.iter().map(of).collect())
    }
}

impl Case {
    fn name(&self) -> String {
        format!("{}_{}", self.pattern.name(), self.shape.connections)
    }

    fn row(&self, service: Service) -> Option<&Row> {
        self.rows.iter().find(|row| row.service == service)
    }

    fn over(&self, service: Service, other: Service, of: impl Fn(&Round) -> f64) -> f64 {
        let rounds = |service| self.row(service).into_iter().flat_map(|row| &row.saturated);
        median(rounds(service).zip(rounds(other)).map(|(a, b)| of(a) / of(b)).collect())
    }

    fn ratios(&self) -> Vec<Ratio> {
        let ours = Service::ALL.into_iter().filter(|service| service.is_ours());
        let pairs = ours.flat_map(|service| [(service, Service::Bare), (service, Service::Naive)]);
        let ratio = |(service, other): (Service, Service)| {
            let aim = match (self.pattern, service, other) {
                (Pattern::Hot, Service::TidegateLeased, Service::Bare) => Some(0.5),
                (Pattern::Unlike, Service::Tidegate, Service::Naive) => Some(1.5),
                _ => None,
            };
            Ratio {
                name: format!("{}_{}_vs_{}", self.name(), service.name(), other.name()),
                per_second: self.over(service, other, Round::per_second),
                per_core: self.over(service, other, Round::per_core),
                aim,
            }
        };
        pairs.map(ratio).collect()
    }
}

pub(crate) fn json(cases: &[Case]) -> Value {
    let rows = cases.iter().flat_map(|case| {
        case.rows.iter().map(|row| {
            json!({
                "case": case.pattern.name(),
                "connections": case.shape.connections,
                "in_flight_per_connection": case.shape.in_flight,
                "subject": row.service.name(),
                "decisions_per_s": row.median(Round::per_second).round(),
                "decisions_per_core_s": row.median(Round::per_core).round(),
                "redis_cpu_us_per_decision": rounded(row.median(Round::redis_us)),
                "saturated_p50_us": rounded(row.median(|round| round.us(0.5))),
                "saturated_p99_us": rounded(row.median(|round| round.us(0.99))),
                "half_decisions_per_s": row.median_at_half(Round::per_second).round(),
                "half_p50_us": rounded(row.median_at_half(|round| round.us(0.5))),
                "half_p99_us": rounded(row.median_at_half(|round| round.us(0.99))),
            })
        })
    });
    let ratios = cases.iter().flat_map(Case::ratios).map(|ratio| {
        let value = json!({ "per_s": rounded(ratio.per_second), "per_core_s": rounded(ratio.per_core) });
        (ratio.name, value)
    });
    json!({
        "rows": rows.collect::<Vec<_>>(),
        "ratios": ratios.collect::<serde_json::Map<_, _>>(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hdrhistogram::Histogram;

    use super::*;

    fn row(service: Service, allowed: u64) -> Row {
        let round = || Round {
            allowed,
            denied: 0,
            failed: 0,
            first_error: None,
            took_ns: Histogram::new(3).expect("3 digits are valid"),
            lasted: Duration::from_secs(1),
            service_cpu: Some(Duration::from_millis(500)),
            redis_cpu: Duration::ZERO,
        };
        Row { service, saturated: vec![round()], half: vec![round()] }
    }

    #[test]
    fn ratios_are_of_our_services_to_the_others_and_two_of_them_have_aims() {
        let rows = || {
            let counts = [(Service::Bare, 400), (Service::Naive, 100), (Service::Tidegate, 200)];
            let mut rows: Vec<Row> = counts.map(|(service, allowed)| row(service, allowed)).into();
            rows.push(row(Service::TidegateLeased, 300));
            rows
        };
        let cases = Pattern::ALL.map(|pattern| Case { pattern, shape: Shape::ALL[0], rows: rows() });
        let ratios = json(&cases)["ratios"].clone();
        assert_eq!(ratios["unlike_16_tidegate_vs_naive"], json!({ "per_s": 2.0, "per_core_s": 2.0 }));
        assert_eq!(ratios["hot_16_tidegate-leased_vs_bare"]["per_s"], 0.75);
        let text = table(&cases);
        assert!(text.contains("| `unlike_16_tidegate_vs_naive` | 2.00 | 2.00 | 1.5 |"), "{text}");
        assert!(text.contains("| `hot_16_tidegate-leased_vs_bare` | 0.75 | 0.75 | 0.5 |"), "{text}");
        assert!(text.contains("| `hot_16_tidegate_vs_bare` | 0.50 | 0.50 | - |"), "{text}");
    }
}
