//! The instances, seen from the parent.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::Failure;
use crate::instance::{Line, Order, Report};

/// The hidden option that makes the demo an instance.
pub(crate) const INSTANCE: &str = "instance";

pub(crate) struct Fleet {
    /// Closed when this is dropped, or this process ends: then they end too.
    orders: Vec<ChildStdin>,
    said: UnboundedReceiver<(usize, Result<Line, Failure>)>,
    _processes: Vec<Child>,
}

impl Fleet {
    /// Returns when all of them are connected, so that they can begin at once.
    pub(crate) async fn start(size: usize, url: &str, namespace: &str) -> Result<Self, Failure> {
        let (sender, said) = unbounded_channel();
        let mut fleet = Self { orders: Vec::new(), said, _processes: Vec::new() };
        for index in 0..size {
            let mut process = Command::new(std::env::current_exe()?)
                .arg(format!("--{INSTANCE}"))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let (Some(stdin), Some(stdout)) = (process.stdin.take(), process.stdout.take()) else {
                return Err("an instance without pipes".into());
            };
            tokio::spawn(listen(index, stdout, sender.clone()));
            fleet.orders.push(stdin);
            fleet._processes.push(process);
        }
        fleet.order(&Order::Connect { url: url.to_owned(), namespace: namespace.to_owned() }).await?;
        for _ in 0..size {
            match fleet.hear().await? {
                (_, Line::Connected) => {}
                (_, line) => return Err(format!("an instance could not connect: {line:?}").into()),
            }
        }
        Ok(fleet)
    }

    /// All instances ask; one report of each, in their order. `progress` is told how often they
    /// have asked so far, and how often they were admitted.
    pub(crate) async fn ask(
        &mut self,
        scenario: usize,
        duration: Duration,
        mut progress: impl FnMut(u64, u64) -> io::Result<()>,
    ) -> Result<Vec<Report>, Failure> {
        self.order(&Order::Ask { scenario, millis: duration.as_millis() as u64 }).await?;
        let mut so_far = vec![(0, 0); self.orders.len()];
        let mut reports = Vec::new();
        while reports.len() < self.orders.len() {
            match self.hear().await? {
                (index, Line::Progress { offered, allowed }) => {
                    so_far[index] = (offered, allowed);
                    progress(so_far.iter().map(|it| it.0).sum(), so_far.iter().map(|it| it.1).sum())?;
                }
                (index, Line::Report(report)) => reports.push((index, report)),
                (_, line) => return Err(format!("an instance said {line:?}").into()),
            }
        }
        reports.sort_unstable_by_key(|&(index, _)| index);
        Ok(reports.into_iter().map(|(_, report)| report).collect())
    }

    async fn order(&mut self, order: &Order) -> Result<(), Failure> {
        let line = serde_json::to_string(order)? + "\n";
        for orders in &mut self.orders {
            orders.write_all(line.as_bytes()).await?;
        }
        Ok(())
    }

    async fn hear(&mut self) -> Result<(usize, Line), Failure> {
        match self.said.recv().await {
            Some((index, line)) => Ok((index, line?)),
            None => Err("all instances have ended".into()),
        }
    }
}

/// Passes on what an instance says, and its end, which is never expected.
async fn listen(index: usize, stdout: ChildStdout, sender: UnboundedSender<(usize, Result<Line, Failure>)>) {
    let mut lines = BufReader::new(stdout).lines();
    loop {
        let line = match lines.next_line().await {
            Ok(Some(line)) => serde_json::from_str(&line).map_err(Failure::from),
            Ok(None) => Err(format!("instance {index} has ended").into()),
            Err(error) => Err(error.into()),
        };
        let is_last = line.is_err();
        if sender.send((index, line)).is_err() || is_last {
            return;
        }
    }
}
