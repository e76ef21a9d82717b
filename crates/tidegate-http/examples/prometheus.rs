//! A service that exports its limits to Prometheus, under a load that it generates and counts itself. Its
//! rules are in a file, which it reloads on changes, and its limits in a Redis.
//!
//! ```console
//! $ TIDEGATE_REDIS_URL=redis://127.0.0.1:6379 LISTEN=127.0.0.1:3000 cargo run -p tidegate-http --features axum,rules --example prometheus
//! $ curl -s http://127.0.0.1:3000/metrics | grep decisions
//! $ curl -s -X POST http://127.0.0.1:3000/stop      # stops the load, and returns its counts
//! ```
//!
//! | variable | meaning |
//! | --- | --- |
//! | `RULES` | the file or folder of rules; `examples/prometheus.yaml` |
//! | `RATE` | checks per second; 500 |
//!
//! A minimal `prometheus.yml`:
//!
//! ```yaml
//! rule_files: [docs/operate/alerts.yml]
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
use tidegate::{Acquired, Adaptive, Decision, Gate, Limiter, Quota, Rate};
use tidegate_rules::{Descriptor, Loader, ReloadingRules, RuleOutcome};
use tokio::net::TcpListener;

type Failure = Box<dyn Error>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    // The recorder is installed first: counts before that are lost.
    let recorder = recorder()?;
    let url = std::env::var("TIDEGATE_REDIS_URL")?;
    // Another database of the server stands for another region.
    let other = format!("{url}/1");
    let builder = || Limiter::builder().namespace("example-prometheus");
    let limiter = builder().url(&url).region("eu").peer("us", &other).observer(Metrics::new()).build()?;
    let _us = builder().url(&other).region("us").peer("eu", &url).build()?;
    let path = std::env::var("RULES")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/examples/prometheus.yaml").to_owned());
    let rules = Loader::new().watch(path, &limiter)?;

    let load = Arc::new(Load::default());
    let rate = std::env::var("RATE").map_or(Ok(500), |rate| rate.parse())?;
    let jobs = limiter.gate("jobs", Quota::token_bucket(100, Rate::per_second(100)));
    let provider = limiter.gate("provider", Quota::in_flight(20)).adaptive(Adaptive::new());
    let tokens = limiter.gate("tokens", Quota::token_bucket(10, Rate::per_second(10))).charge_used(true);
    tokio::spawn(load.clone().run(rules, [jobs, provider, tokens], rate));

    let app = Router::new()
        .route("/metrics", get(async move || recorder.render()))
        .route("/stop", post(async move || load.stop().await));
    axum::serve(TcpListener::bind(std::env::var("LISTEN")?).await?, app).await?;
    Ok(())
}

fn recorder() -> Result<PrometheusHandle, Failure> {
    let recorder = PrometheusBuilder::new()
        .set_buckets(&names::SECONDS)?
        .set_buckets_for_metric(Matcher::Full(names::CALL_CHECKS.name.to_owned()), &names::CHECKS)?
        .install_recorder()?;
    // Without upkeep, histograms keep every recorded value.
    let upkeep = recorder.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            upkeep.run_upkeep();
        }
    });
    Ok(recorder)
}

/// Runs checks, and counts their decisions.
#[derive(Default)]
struct Load {
    /// By gate, outcome and source.
    decisions: Mutex<BTreeMap<[String; 3], u64>>,
    is_over: AtomicBool,
    /// Held while the load runs.
    running: tokio::sync::Mutex<()>,
}

/// Interval between batches of checks.
const TICK: Duration = Duration::from_millis(20);

impl Load {
    async fn run(self: Arc<Self>, rules: ReloadingRules, [jobs, provider, tokens]: [Gate; 3], rate: u64) {
        let _running = self.running.lock().await;
        let mut ticks = tokio::time::interval(TICK);
        let per_tick = (rate * TICK.as_millis() as u64).div_ceil(1_000).max(1);
        let mut checks = 0..per_tick;
        while !self.is_over.load(Ordering::Acquire) {
            ticks.tick().await;
            // Concurrently, so that some of the checks share a call to Redis.
            futures_util::future::join_all(checks.clone().map(|index| self.check(&rules, index))).await;
            checks = checks.end..checks.end + per_tick;
            self.reserve(&jobs).await;
            self.take_batch(&jobs).await;
            self.call(&provider).await;
            self.use_tokens(&tokens).await;
        }
    }

    async fn check(&self, rules: &ReloadingRules, index: u64) {
        let rules_and_keys = [("api", 1), ("search", 1_000), ("login", 20), ("export", 5), ("upload", 5)];
        let (rule, keys) = rules_and_keys[(index % 5) as usize];
        let key = format!("user:{}", index / 5 % keys);
        let acquired = rules.limits().acquire("shop", &[Descriptor::new().entry(rule, &key)]).await;
        // An upload is over at once: its permits are dropped at the end of this function.
        let Ok(Acquired::Admitted(_, decision) | Acquired::Denied(decision)) = &acquired else { return };
        decision
            .outcomes()
            .iter()
            .filter_map(RuleOutcome::decision)
            .for_each(|decision| self.count(decision));
    }

    /// Reserves units of a job, which uses a third of them.
    async fn reserve(&self, jobs: &Gate) {
        let Ok(reserved) = jobs.limiter().reserve([jobs.key("acme").cost(3)]).await else { return };
        self.count(reserved.decision().binding());
        if let Some(token) = reserved.token() {
            // An error is counted as a metric.
            let _ = jobs.limiter().commit(token, [1]).await;
        }
    }

    /// Takes as many jobs of a batch as the limit allows.
    async fn take_batch(&self, jobs: &Gate) {
        if let Ok(grant) = jobs.take_up_to("batch", 5).await {
            self.count(grant.decision());
        }
    }

    /// Calls a provider, which takes no time.
    async fn call(&self, provider: &Gate) {
        let acquired = provider.acquire("provider").await;
        let Ok(Acquired::Admitted(_, decision) | Acquired::Denied(decision)) = &acquired else { return };
        self.count(decision);
    }

    /// Charges tokens that a response has used: more than the cap of the debt.
    async fn use_tokens(&self, tokens: &Gate) {
        if let Ok(decision) = tokens.check_cost("acme", 1_000).await {
            self.count(&decision);
        }
    }

    fn count(&self, decision: &Decision) {
        let labels = [decision.gate(), decision.outcome(), decision.source().as_str()];
        let mut decisions = self.decisions.lock().unwrap_or_else(PoisonError::into_inner);
        *decisions.entry(labels.map(str::to_owned)).or_default() += 1;
    }

    /// Stops the load. Returns the counts, including the last check.
    async fn stop(&self) -> String {
        self.is_over.store(true, Ordering::Release);
        let _stopped = self.running.lock().await;
        let decisions = self.decisions.lock().unwrap_or_else(PoisonError::into_inner);
        let decisions = decisions.iter().map(|([gate, outcome, source], count)| {
            json!({ "gate": gate, "outcome": outcome, "source": source, "count": count })
        });
        format!("{:#}\n", json!(decisions.collect::<Vec<_>>()))
    }
}
