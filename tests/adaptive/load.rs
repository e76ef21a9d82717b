//! Load on a gate in memory, whose clock the test moves.

use std::time::Duration;

use futures_util::future::join_all;
use tidegate::{Gate, Permit};

use crate::support::acquired::AcquiredParts;
use crate::support::world::World;

/// Longer than a window and its time for reports, and shorter than two.
pub const WINDOW: Duration = Duration::from_millis(1_300);

/// Acquires units of `cost` until one is denied.
pub async fn fill(gate: &Gate, key: &str) -> Vec<Permit> {
    let mut permits = Vec::new();
    while let Some(permit) = gate.try_acquire(key).await.unwrap().permit() {
        permits.push(permit);
    }
    permits
}

pub async fn release(permits: Vec<Permit>) {
    for released in join_all(permits.into_iter().map(Permit::release)).await {
        released.unwrap();
    }
    settle().await;
}

/// Lets the jobs in the background report.
pub async fn settle() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

/// Has as many operations in flight as the gate admits, each of which takes `latency`, for a window. `mark` is
/// called for each.
pub async fn saturate_with(world: &World, gate: &Gate, key: &str, latency: Duration, mark: impl Fn(&Permit)) {
    let mut passed = Duration::ZERO;
    while passed < WINDOW {
        let permits = fill(gate, key).await;
        permits.iter().for_each(&mark);
        world.advance(latency);
        passed += latency;
        release(permits).await;
    }
}

pub async fn saturate(world: &World, gate: &Gate, key: &str, latency: Duration) {
    saturate_with(world, gate, key, latency, |_| {}).await;
}
