//! A service that shows its limits to Prometheus, under a load that it makes and counts itself: by rules from
//! a file, which it follows, over a Redis.
//!
//! ```console
//! $ TIDEGATE_REDIS_URL=redis://127.0.0.1:6379 LISTEN=127.0.0.1:3000 cargo run --features axum,metrics,rules --example prometheus
//! $ curl -s http://127.0.0.1:3000/metrics | grep decisions
//! $ curl -s http://127.0.0.1:3000/most-denied
//! $ curl -s -X POST http://127.0.0.1:3000/stop      # the load; what it counted
//! ```
//!
//! | variable | means |
//! | --- | --- |
//! | `RULES` | the file or folder of rules; `examples/prometheus.yaml` |
//! | `RATE` | asks a second; 500 |
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
use axum::routing::{get, post};
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
    let rate = std::env::var("RATE").map_or(Ok(500), |rate| rate.parse())?;
    tokio::spawn(load.clone().run(watched, rate));

    let app = Router::new()
        .route("/metrics", get(async move || recorder.render()))
        .route("/stop", post(async move || load.stop().await))
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

fn shown(most_denied: &MostDenied) -> String {
    most_denied.top(10).iter().map(|key| format!("{key}\n")).collect()
}

/// Asks, and counts what it is told.
#[derive(Default)]
struct Load {
    /// By gate, outcome and source.
    decisions: Mutex<BTreeMap<[String; 3], u64>>,
    is_over: AtomicBool,
    /// Held while it asks.
    asking: tokio::sync::Mutex<()>,
}

/// How often who asks wakes.
const TICK: Duration = Duration::from_millis(20);

impl Load {
    async fn run(self: Arc<Self>, watched: Watched, rate: u64) {
        let _asking = self.asking.lock().await;
        let mut ticks = tokio::time::interval(TICK);
        let of_a_tick = (rate * TICK.as_millis() as u64).div_ceil(1_000).max(1);
        let mut asks = 0..of_a_tick;
        while !self.is_over.load(Ordering::Acquire) {
            ticks.tick().await;
            // At once, so that some of them go to Redis together.
            futures_util::future::join_all(asks.clone().map(|ask| self.ask(&watched, ask))).await;
            asks = asks.end..asks.end + of_a_tick;
        }
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

    /// What was counted until the last ask.
    async fn stop(&self) -> String {
        self.is_over.store(true, Ordering::Release);
        let _over = self.asking.lock().await;
        let decisions = self.decisions.lock().unwrap_or_else(PoisonError::into_inner);
        let decisions = decisions.iter().map(|([gate, outcome, source], count)| {
            json!({ "gate": gate, "outcome": outcome, "source": source, "count": count })
        });
        format!("{:#}\n", json!(decisions.collect::<Vec<_>>()))
    }
}
