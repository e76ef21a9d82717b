//! The parent's view of the instances.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::Failure;
use crate::instance::{Instruction, Message, Report};

/// The hidden option that makes the demo an instance.
pub(crate) const INSTANCE: &str = "instance";

pub(crate) struct Fleet {
    /// The instances end when this is dropped or this process ends, since that closes their stdin.
    inputs: Vec<ChildStdin>,
    messages: UnboundedReceiver<(usize, Result<Message, Failure>)>,
    _processes: Vec<Child>,
}

impl Fleet {
    /// Starts the instances. Returns when all of them are connected, so that they can begin at the same time.
    pub(crate) async fn start(size: usize, url: &str, namespace: &str) -> Result<Self, Failure> {
        let (sender, messages) = unbounded_channel();
        let mut fleet = Self { inputs: Vec::new(), messages, _processes: Vec::new() };
        for index in 0..size {
            let mut process = Command::new(std::env::current_exe()?)
                .arg(format!("--{INSTANCE}"))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let (Some(stdin), Some(stdout)) = (process.stdin.take(), process.stdout.take()) else {
                return Err("an instance has no pipes".into());
            };
            tokio::spawn(forward(index, stdout, sender.clone()));
            fleet.inputs.push(stdin);
            fleet._processes.push(process);
        }
        fleet.send(&Instruction::Connect { url: url.to_owned(), namespace: namespace.to_owned() }).await?;
        for _ in 0..size {
            match fleet.receive().await? {
                (_, Message::Connected) => {}
                (_, message) => return Err(format!("an instance could not connect: {message:?}").into()),
            }
        }
        Ok(fleet)
    }

    /// Runs a scenario on all instances. Returns one report per instance, in their order. Calls `progress`
    /// with the number of checks so far, and the number of them that were allowed.
    pub(crate) async fn run(
        &mut self,
        scenario: usize,
        duration: Duration,
        mut progress: impl FnMut(u64, u64) -> io::Result<()>,
    ) -> Result<Vec<Report>, Failure> {
        self.send(&Instruction::Check { scenario, millis: duration.as_millis() as u64 }).await?;
        let mut totals = vec![(0, 0); self.inputs.len()];
        let mut reports = Vec::new();
        while reports.len() < self.inputs.len() {
            match self.receive().await? {
                (index, Message::Progress { offered, allowed }) => {
                    totals[index] = (offered, allowed);
                    let offered = totals.iter().map(|total| total.0).sum();
                    let allowed = totals.iter().map(|total| total.1).sum();
                    progress(offered, allowed)?;
                }
                (index, Message::Report(report)) => reports.push((index, report)),
                (_, message) => return Err(format!("unexpected message of an instance: {message:?}").into()),
            }
        }
        reports.sort_unstable_by_key(|&(index, _)| index);
        Ok(reports.into_iter().map(|(_, report)| report).collect())
    }

    async fn send(&mut self, instruction: &Instruction) -> Result<(), Failure> {
        let line = serde_json::to_string(instruction)? + "\n";
        for input in &mut self.inputs {
            input.write_all(line.as_bytes()).await?;
        }
        Ok(())
    }

    async fn receive(&mut self) -> Result<(usize, Message), Failure> {
        match self.messages.recv().await {
            Some((index, message)) => Ok((index, message?)),
            None => Err("all instances have ended".into()),
        }
    }
}

/// Forwards an instance's messages, and its end, which is always an error.
async fn forward(
    index: usize,
    stdout: ChildStdout,
    sender: UnboundedSender<(usize, Result<Message, Failure>)>,
) {
    let mut lines = BufReader::new(stdout).lines();
    loop {
        let message = match lines.next_line().await {
            Ok(Some(line)) => serde_json::from_str(&line).map_err(Failure::from),
            Ok(None) => Err(format!("instance {index} has ended").into()),
            Err(error) => Err(error.into()),
        };
        let is_last = message.is_err();
        if sender.send((index, message)).is_err() || is_last {
            return;
        }
    }
}
