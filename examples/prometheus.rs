//! A service that shows its limits to Prometheus, under a load that it makes and counts itself: by rules from
//! a file, which it follows, over a Redis.
//!
//! ```console
//! $ TIDEGATE_REDIS_URL=redis://127.0.0.1:6379 LISTEN=127.0.0.1:3000 cargo run --features axum,metrics,rules --example prometheus
//! $ curl -s http://127.0.0.1:3000/metrics | grep decisions
//! $ curl -s http://127.0.0.1:3000/counted
//! ```
//!
//! | variable | means |
//! | --- | --- |
//! | `RULES` | the file or folder of rules; `examples/prometheus.yaml` |
//! | `RATE` | asks a second; 500 |
//! | `ASKS` | how many, after which it only serves; without end |
//!
//! `prometheus.yml` needs no more than this:
//!
//! ```yaml
//! rule_files: [docs/alerts.yml]
//! scrape_configs: [{ job_name: tidegate, static_configs: [{ targets: ["127.0.0.1:3000"] }] }]
//! ```

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use serde_json::json;
use tidegate::metrics::{Metrics, names};
use tidegate::rules::{Descriptor, Loader, Verdict, Watched};
use tidegate::{Limiter, MostDenied};
use tokio::net::TcpListener;

type Failure = Box<dyn Error>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    // First the recorder: what is counted before it is there is lost.
    let recorder = recorder()?;
    let most_denied = MostDenied::new(100);
    let limiter = Limiter::builder()
        .url(&std::env::var("TIDEGATE_REDIS_URL")?)
        .namespace("example-prometheus")
        .observer((Metrics::new(), most_denied.clone()))
        .build()?;
    let rules = std::env::var("RULES").unwrap_or_else(|_| "examples/prometheus.yaml".to_owned());
    let watched = Loader::new().watch(rules, &limiter)?;

    let load = Arc::new(Load::default());
    tokio::spawn(load.clone().run(watched, number("RATE", 500)?, number("ASKS", u64::MAX)?));

    let app = Router::new()
        .route("/metrics", get(async move || recorder.render()))
        .route("/counted", get(async move || load.counted()))
        .route("/most-denied", get(async move || shown(&most_denied)));
    axum::serve(TcpListener::bind(std::env::var("LISTEN")?).await?, app).await?;
    Ok(())
}

fn recorder() -> Result<PrometheusHandle, Failure> {
    let recorder = PrometheusBuilder::new()
        .set_buckets(&names::SECONDS)?
        .set_buckets_for_metric(Matcher::Full(names::CALL_ASKS.name.to_owned()), &names::ASKS)?
        .install_recorder()?;
    // Histograms keep what was recorded until then.
    let upkeep = recorder.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            upkeep.run_upkeep();
        }
    });
    Ok(recorder)
}

fn number(variable: &str, otherwise: u64) -> Result<u64, Failure> {
    Ok(std::env::var(variable).map_or(Ok(otherwise), |number| number.parse())?)
}

fn shown(most_denied: &MostDenied) -> String {
    most_denied.top(10).iter().map(|key| format!("{key}\n")).collect()
}

/// Asks, and counts what it is told.
#[derive(Default)]
struct Load {
    /// By gate, outcome and source.
    decisions: Mutex<BTreeMap<[String; 3], u64>>,
    is_over: AtomicBool,
}

/// How often who asks wakes.
const TICK: Duration = Duration::from_millis(20);

impl Load {
    async fn run(self: Arc<Self>, watched: Watched, rate: u64, asks: u64) {
        let mut ticks = tokio::time::interval(TICK);
        let of_a_tick = (rate * TICK.as_millis() as u64).div_ceil(1_000).max(1);
        let mut asked = 0;
        while asked < asks {
            ticks.tick().await;
            let until = (asked + of_a_tick).min(asks);
            // At once, so that some of them go to Redis together.
            futures_util::future::join_all((asked..until).map(|ask| self.ask(&watched, ask))).await;
            asked = until;
        }
        self.is_over.store(true, Ordering::Release);
    }

    async fn ask(&self, watched: &Watched, ask: u64) {
        let (rule, keys) = [("api", 1), ("search", 1_000), ("login", 20), ("export", 5)][(ask % 4) as usize];
        let key = format!("user:{}", ask / 4 % keys);
        let ruling = watched.limits().check("shop", &[Descriptor::new().entry(rule, &key)]).await;
        let Ok(ruling) = ruling else { return };
        for decision in ruling.verdicts().iter().filter_map(Verdict::decision) {
            let words = [decision.gate(), decision.outcome(), decision.source().as_str()];
            let mut decisions = self.decisions.lock().unwrap_or_else(PoisonError::into_inner);
            *decisions.entry(words.map(str::to_owned)).or_default() += 1;
        }
    }

    fn counted(&self) -> String {
        // First whether it is over: then nothing is counted any more.
        let is_over = self.is_over.load(Ordering::Acquire);
        let decisions = self.decisions.lock().unwrap_or_else(PoisonError::into_inner);
        let decisions = decisions.iter().map(|([gate, outcome, source], count)| {
            json!({ "gate": gate, "outcome": outcome, "source": source, "count": count })
        });
        format!("{:#}\n", json!({ "is_over": is_over, "decisions": decisions.collect::<Vec<_>>() }))
    }
}
