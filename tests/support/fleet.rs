//! Several processes under steady load.

use serde_json::json;

use crate::support::instance::Instance;
use crate::support::load::{Job, Report, now_us};

pub struct Fleet {
    instances: Vec<Instance>,
    /// As long as nobody has asked, no window has begun.
    pub start_us: u64,
}

impl Fleet {
    /// Processes that run the ignored test `test` with `job` in the environment; every second asks one by
    /// one.
    pub async fn start(test: &str, variable: &str, job: &Job) -> Self {
        let orders = |job: &Job| serde_json::to_string(job).unwrap();
        let mut instances: Vec<Instance> = (0..job.instances)
            .map(|process| {
                let job = Job { one_by_one: process % 2 == 1, ..job.clone() };
                Instance::spawn(test, variable, &[&orders(&job)])
            })
            .collect();
        for instance in &mut instances {
            assert_eq!(instance.says().await, json!({"ready": true}));
        }
        let mut fleet = Self { instances, start_us: now_us() };
        fleet.go_on().await;
        fleet
    }

    /// They note what they have.
    pub async fn note(&mut self) {
        self.go_on().await;
    }

    /// They ask no more, and tell. They are there as long as what is returned with it.
    pub async fn end(mut self) -> (Vec<Report>, Self) {
        self.go_on().await;
        let mut reports = Vec::new();
        for instance in &mut self.instances {
            reports.push(serde_json::from_value(instance.says().await).unwrap());
        }
        (reports, self)
    }

    async fn go_on(&mut self) {
        for instance in &mut self.instances {
            instance.start().await;
        }
    }
}
