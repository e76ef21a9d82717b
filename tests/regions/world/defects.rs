//! Mistakes in a replicator or a script, which an assertion must find.

use tidegate::Quota;
use tidegate::regions::reference::{Batch, Change, Mode, Verb};

use super::super::oracle::rate_and_per;
use super::{KEY, World, quota_of};

/// A mistake in a replicator or a script, which an assertion must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    // Of gossip.
    ApplyTwice,
    LoseItems,
    ChargeWindowOfArrival,
    /// Charges of a window that has ended add to its count, and no longer to the debt.
    NoPrior,
    /// The cursor that is stored now is expected, whatever was read.
    NoCursorCheck,
    // Of the share policy.
    IgnoreShare,
    /// The share begins again when the first of several cuts ends.
    ShareBeginsAgain,
    // Of escrow.
    ApplyGrantsTwice,
    DrainBelowHeld,
    SettleWithoutDraining,
    SettleByAnyPeer,
    NoTestOfBucket,
    NoTestOfFreshness,
    ReleaseBucketEarly,
    ExpireWithLevel,
    NeverRelease,
    CostsAboveShare,
}

impl World {
    pub(super) fn defect(&self, defect: Defect) -> bool {
        self.setup.defect == Some(defect)
    }

    pub(super) fn plant_in_batch(&mut self, to: usize, from: usize, batch: &mut Batch, local: u64) {
        let Some(defect) = self.setup.defect else { return };
        let window = |quota: &Quota, at: u64| at - at % quota.window().as_micros() as u64;
        let changes = batch.entries.iter_mut().flat_map(|entry| &mut entry.changes);
        match defect {
            Defect::ApplyTwice => {
                let twice = batch.entries.clone();
                batch.entries.extend(twice);
            }
            Defect::LoseItems => {
                for entry in &mut batch.entries {
                    entry.changes.retain(|_| self.rng.u32(0..10) > 0);
                }
            }
            Defect::ChargeWindowOfArrival => {
                changes.filter(|(field, _)| field.name > 0).for_each(|(field, _)| {
                    field.name = window(&quota_of(&field.mode), local);
                });
            }
            Defect::NoPrior => {
                for entry in &mut batch.entries {
                    entry.changes.retain(|(field, _)| field.name >= window(&quota_of(&field.mode), local));
                }
            }
            Defect::NoCursorCheck => {
                batch.expected = self.nodes[to].region.replication.cursors.get(&(from as u16)).copied();
            }
            Defect::ApplyGrantsTwice => {
                for entry in &mut batch.entries {
                    let grants: Vec<Change> = entry
                        .changes
                        .iter()
                        .filter(|(field, _)| matches!(field.verb, Verb::Grant { .. }))
                        .cloned()
                        .collect();
                    entry.changes.extend(grants);
                }
            }
            Defect::NoTestOfBucket => batch.peer_us = 0,
            Defect::NoTestOfFreshness => batch.read_us = local,
            _ => {}
        }
    }

    /// Before each step of a region's keys: mistakes in how they age.
    pub(super) fn plant_in_key(&mut self, region: usize) {
        let local = self.local(region);
        let Mode::Escrow(escrow) = self.nodes[region].mode else { return };
        let Some(key) = self.nodes[region].region.escrow.get_mut(KEY) else { return };
        let bucket = local / escrow.bucket_us;
        match self.setup.defect {
            Some(Defect::ReleaseBucketEarly) => key.granted.retain(|(of, _)| of + 1 >= bucket),
            Some(Defect::NeverRelease) => {
                key.granted.iter_mut().for_each(|(of, _)| *of = bucket);
                key.record.expires_ms = u64::MAX;
            }
            _ => {}
        }
    }

    /// Before each take: mistakes in the share policy. Returns the cut that the take reads.
    pub(super) fn plant_in_share(&mut self, region: usize, cut: Option<u64>) -> Option<u64> {
        let node = &mut self.nodes[region];
        match (self.setup.defect, cut) {
            (Some(Defect::IgnoreShare), _) => return None,
            (Some(Defect::ShareBeginsAgain), Some(cut)) if node.last_cut != cut => {
                node.region.gossip.retain(|key, _| key == KEY);
            }
            _ => {}
        }
        node.last_cut = cut.unwrap_or(0);
        cut
    }

    pub(super) fn expire_early(&mut self, region: usize) {
        let local = self.local(region);
        let Mode::Escrow(escrow) = self.nodes[region].mode else { return };
        if let Some(key) = self.nodes[region]
            .region
            .escrow
            .get_mut(KEY)
            .filter(|_| self.setup.defect == Some(Defect::ExpireWithLevel))
        {
            let (rate, _) = rate_and_per(&escrow.quota);
            key.record.expires_ms = (local + escrow.level(key) as u64 / rate.max(1) as u64).div_ceil(1_000);
        }
    }
}
