//! One limit in several regions: the bounds of each mode hold at every step of random runs, and each planted mistake
//! violates one.

mod adversary;
mod examples;
mod limiter;
mod lockstep;
mod oracle;
mod replicator;
mod scripts;
mod setups;
mod world;

use crate::support::plan::sequences;
use setups::Family;
use world::{Seen, World};

/// Runs a family of random setups. Prints the figures of the runs.
fn hold(family: Family, runs: u32) {
    let mut all = Seen::default();
    for seed in 0..u64::from(runs) {
        match run(family, seed) {
            Ok(seen) => {
                all.admitted += seen.admitted;
                all.denied += seen.denied;
                all.forgiven += seen.forgiven;
                all.gaps += seen.gaps;
                all.over = all.over.max(seen.over);
                all.of_bound = all.of_bound.max(seen.of_bound);
                all.lost = all.lost.max(seen.lost);
            }
            Err(error) => panic!("{family:?}, seed {seed}: {error}"),
        }
    }
    eprintln!("{family:?}: {runs} runs, {all:?}");
    assert!(all.admitted > 0 && all.denied > 0, "{family:?} decides nothing: {all:?}");
}

fn run(family: Family, seed: u64) -> Result<Seen, String> {
    let (setup, quiet_us) = family.setup(seed);
    let mut world = World::new(setup, seed);
    world.run(quiet_us)?;
    world.check_quiet()?;
    Ok(world.seen)
}

macro_rules! families {
    ($($name:ident: $family:ident, $part:literal;)+) => {
        $(#[test]
        fn $name() {
            hold(Family::$family, sequences() / $part);
        })+
    };
}

families! {
    gossip_levels_stay_within_their_bounds: GossipLevel, 50;
    gossip_windows_stay_within_their_bounds: GossipWindow, 50;
    gossip_windows_with_carry_repay_what_they_exceed: GossipCarry, 50;
    gossip_logs_stay_within_their_bounds: GossipLog, 50;
    gossip_counters_stay_within_their_bounds: GossipCounter, 50;
    gossip_with_the_share_policy_stays_within_its_bound_while_cut_off: GossipShare, 50;
    escrow_of_levels_never_exceeds_the_limit: EscrowLevel, 25;
    escrow_of_windows_never_exceeds_the_limit: EscrowWindow, 50;
    operations_besides_takes_stay_within_the_bounds: Operations, 50;
    leases_add_no_more_than_they_hold: Leases, 50;
    losses_of_a_regions_state_admit_no_more_than_stated: Losses, 50;
}
