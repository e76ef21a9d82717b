//! Several processes under a steady load.

use serde_json::json;

use crate::instance::Instance;
use crate::load::{Job, Report, now_us};

pub struct Fleet {
    instances: Vec<Instance>,
    /// The time before the first check. No window has started before it.
    pub start_us: u64,
}

impl Fleet {
    /// Starts processes that run the ignored test `test` with `job` in an environment variable. Every second
    /// process runs without batching.
    pub async fn start(test: &str, variable: &str, job: &Job) -> Self {
        let encode = |job: &Job| serde_json::to_string(job).unwrap();
        let mut instances: Vec<Instance> = (0..job.instances)
            .map(|process| {
                let job = Job { one_by_one: process % 2 == 1, ..job.clone() };
                Instance::spawn(test, variable, &[&encode(&job)])
            })
            .collect();
        for instance in &mut instances {
            assert_eq!(instance.says().await, json!({"ready": true}));
        }
        let mut fleet = Self { instances, start_us: now_us() };
        fleet.send_line().await;
        fleet
    }

    /// Returns the ids of the processes.
    pub fn processes(&self) -> Vec<String> {
        self.instances.iter().map(|instance| instance.process.id().unwrap().to_string()).collect()
    }

    /// Makes each process record its resources.
    pub async fn note(&mut self) {
        self.send_line().await;
    }

    /// Stops the checks and returns the report of each process. The processes run until the returned fleet is
    /// dropped.
    pub async fn end(mut self) -> (Vec<Report>, Self) {
        self.send_line().await;
        let mut reports = Vec::new();
        for instance in &mut self.instances {
            reports.push(serde_json::from_value(instance.says().await).unwrap());
        }
        (reports, self)
    }

    async fn send_line(&mut self) {
        for instance in &mut self.instances {
            instance.start().await;
        }
    }
}
