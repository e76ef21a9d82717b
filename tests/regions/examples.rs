//! Sequences that a person can follow.

use std::time::Duration;

use tidegate::regions::reference::escrow::Escrow;
use tidegate::regions::reference::gossip::Gossip;
use tidegate::regions::reference::{Batch, Checks, Cursor, Mode, Region};
use tidegate::{Quota, Rate};

const KEY: &str = "user:42";
const START: u64 = 1_767_225_600_000_000;

const SECOND: u64 = 1_000_000;

fn per_second(limit: u64) -> Quota {
    Quota::fixed_window(limit, Duration::from_secs(1)).aligned_to_clock()
}

fn regions(count: u16) -> Vec<Region> {
    let mut regions: Vec<Region> =
        (0..count).map(|name| Region::new(name, count.into(), u64::from(name) + 1)).collect();
    exchange(&mut regions, START - 10 * SECOND);
    regions
}

fn checks(n: u64, cost: u64) -> Checks {
    Checks { n, cost, max_delay: None }
}

/// Every region flushes, then reads and applies all others, and acknowledges.
fn exchange(regions: &mut [Region], now: u64) {
    regions.iter_mut().for_each(|region| region.replication.flush(128, 0, usize::MAX, now));
    for to in 0..regions.len() {
        for from in (0..regions.len()).filter(|from| *from != to) {
            let peer = &regions[from].replication;
            let expected = regions[to].replication.cursors.get(&(from as u16)).copied();
            let (cursor, _) = Cursor::resume(expected, peer.epoch, peer.last);
            let entries: Vec<_> = peer.read(cursor.position.1).cloned().collect();
            let last = entries.last().map_or(cursor.position.1, |entry| entry.id);
            let next = Cursor { position: (cursor.position.0, last), ..cursor };
            let batch = Batch { expected, next, entries, read_us: now, peer_us: now, is_complete: true };
            assert!(regions[to].apply(from as u16, &batch, now));
            regions[from].replication.acks.insert(to as u16, next.position);
            regions[from].settle(to as u16, now);
        }
    }
}

#[test]
fn carry_repays_all_but_the_surplus_of_two_windows() {
    // Every region spends a limit just before and just after each edge, and hears of the others in mid-window.
    for count in [2, 3, 5] {
        let mode = Mode::Gossip(Gossip::new(per_second(100), count.into()).unwrap());
        let mut regions = regions(count);
        let (mut admitted, mut most) = (0, 0);
        for edge in 1..=200 {
            for now in [START + edge * SECOND - 1_000, START + edge * SECOND + 1_000] {
                let all =
                    regions.iter_mut().map(|region| region.take(&mode, KEY, checks(100, 1), None, now).k);
                admitted += all.sum::<u64>();
            }
            // Windows 0 to `edge` have begun.
            most = most.max(admitted as i64 - (edge as i64 + 1) * 100);
            exchange(&mut regions, START + edge * SECOND + SECOND / 2);
        }
        assert_eq!(most, 2 * (i64::from(count) - 1) * 100, "{count} regions");
        assert!(admitted >= 200 * 100, "{count} regions admit {admitted}");
        assert!(regions.iter().all(|region| region.counts.forgiven + region.counts.dropped == 0));
    }
}

#[test]
fn with_share_and_carry_each_cut_adds_at_most_the_limits_of_the_other_regions() {
    for count in [2u16, 3, 5] {
        let mode = Mode::Gossip(Gossip::new(per_second(100), count.into()).unwrap());
        let mut regions = regions(count);
        let (mut admitted, mut cuts, windows) = (0, 0, 120);
        for window in 0..windows {
            // Ten windows connected, ten cut off; the cut is detected half a window later.
            let is_cut = window / 10 % 2 == 1;
            cuts += u64::from(window % 20 == 10);
            for tenth in 0..10 {
                let now = START + window * SECOND + tenth * 100_000 + 1;
                let cut_us = START + window / 10 * 10 * SECOND + 400_000;
                let cut = (is_cut && now >= cut_us).then_some(cut_us);
                admitted += regions
                    .iter_mut()
                    .map(|region| region.take(&mode, KEY, checks(100, 1), cut, now).k)
                    .sum::<u64>();
                if !is_cut {
                    exchange(&mut regions, now + 50_000);
                }
            }
        }
        let others = u64::from(count) - 1;
        let bound = windows * 100 + 2 * others * 100 + cuts * others * 100;
        eprintln!("{count} regions: {admitted} in {windows} windows of 100 with {cuts} cuts, bound {bound}");
        assert!(admitted <= bound, "{count} regions admit {admitted}, more than {bound}");
    }
}

#[test]
fn regions_that_are_all_cut_off_admit_one_limit_together() {
    for quota in [
        per_second(100),
        Quota::sliding_log(100, Duration::from_secs(1)),
        Quota::sliding_counter(100, Duration::from_secs(1)),
        Quota::token_bucket(100, Rate::per_second(100)),
        Quota::leaky_bucket(100, Rate::per_second(100)),
    ] {
        let mode = Mode::Gossip(Gossip::new(quota, 3).unwrap());
        let mut regions = regions(3);
        let cut = START;
        let mut admitted = 0;
        for step in 0..1_000 {
            let now = START + step * SECOND / 100;
            admitted += regions
                .iter_mut()
                .map(|region| region.take(&mode, KEY, checks(5, 1), Some(cut), now).k)
                .sum::<u64>();
        }
        // Ten seconds, of which the first closes the windows.
        assert!((600..=1_000).contains(&admitted), "{quota}: {admitted}");
        for n in [0, 1] {
            let taken = regions[0].take(&mode, KEY, checks(n, 34), Some(cut), START + 20 * SECOND);
            assert!(!taken.answer(0).allowed, "{quota}: 34 units are more than a share");
        }
    }
}

#[test]
fn share_goes_on_when_the_first_of_two_cuts_ends() {
    let quota = Quota::token_bucket(99, Rate::per_second(99));
    let mode = Mode::Gossip(Gossip::new(quota, 3).unwrap());
    let mut regions = regions(3);
    let later = START + SECOND;
    assert_eq!(regions[0].take(&mode, KEY, checks(99, 1), Some(START), later).k, 33);
    // The other peer was cut off half a second after the first one.
    assert_eq!(regions[0].take(&mode, KEY, checks(99, 1), Some(START + SECOND / 2), later).k, 0);
    // A third cut, after both have ended.
    let again = later + 10 * SECOND;
    assert_eq!(regions[0].take(&mode, KEY, checks(99, 1), Some(again), again + SECOND / 2).k, 16);
}

#[test]
fn peer_is_heard_of_when_all_that_it_had_sent_is_applied() {
    let mode = Mode::Gossip(Gossip::new(per_second(10), 2).unwrap());
    let mut regions = regions(2);
    let cut_off = |region: &Region, now| region.replication.cut_off(&[1], SECOND, now);
    let began = START - 10 * SECOND;
    assert_eq!(cut_off(&regions[0], began + SECOND - 1), None);
    assert_eq!(cut_off(&regions[0], START), Some(began + SECOND));
    regions[1].take(&mode, KEY, checks(1, 1), None, START);
    regions[1].replication.flush(128, 0, usize::MAX, START);
    let expected = regions[0].replication.cursors.get(&1).copied();
    let entries: Vec<_> = regions[1].replication.stream.iter().cloned().collect();
    let (next, read_us) = (expected.unwrap(), START);
    let batch = Batch { expected, next, entries, read_us, peer_us: START, is_complete: false };
    assert!(regions[0].apply(1, &batch, START + 2));
    assert!(cut_off(&regions[0], START + 2).is_some(), "the read did not reach the end of the stream");
    assert!(regions[0].apply(1, &Batch { entries: Vec::new(), is_complete: true, ..batch }, START + 3));
    assert_eq!(cut_off(&regions[0], START + 3), None);
    assert_eq!(cut_off(&regions[0], START + SECOND), Some(START + SECOND), "counted from before the read");
}

#[test]
fn a_block_ends_late_elsewhere_by_no_more_than_its_delay() {
    let modes = [
        Mode::Gossip(Gossip::new(per_second(10), 2).unwrap()),
        Mode::Escrow(Escrow::new(Quota::token_bucket(10, Rate::per_second(10)), 2).unwrap()),
    ];
    for mode in modes {
        let mut regions = regions(2);
        regions[0].block(&mode, KEY, SECOND, START);
        regions[0].replication.flush(128, 0, usize::MAX, START + 100_000);
        exchange(&mut regions, START + 300_000);
        let mut admits =
            |region: usize, at| regions[region].take(&mode, KEY, checks(1, 1), None, START + at).k == 1;
        assert!(!admits(1, 300_001) && !admits(1, SECOND), "the peer hears of the block");
        assert!(admits(0, SECOND) && admits(1, SECOND + 200_000), "it was 0.2 s in flight");
        // Lifting it reaches the peer after the block itself.
        regions[0].block(&mode, KEY, 10 * SECOND, START + 2 * SECOND);
        regions[0].block(&mode, KEY, 0, START + 2 * SECOND);
        exchange(&mut regions, START + 2 * SECOND);
        assert_eq!(regions[1].take(&mode, KEY, checks(1, 1), None, START + 3 * SECOND).k, 1);
    }
}

#[test]
fn units_charged_before_a_reset_reach_peers_before_it() {
    let modes = [
        Mode::Gossip(Gossip::new(per_second(10), 2).unwrap()),
        Mode::Escrow(Escrow::new(per_second(10), 2).unwrap()),
    ];
    for mode in modes {
        let mut regions = regions(2);
        assert!(regions[0].take(&mode, KEY, checks(5, 1), None, START).k > 0);
        regions[0].reset(&mode, KEY, START + 1);
        assert_eq!(regions[0].take(&mode, KEY, checks(1, 1), None, START + 2).k, 1);
        exchange(&mut regions, START + 3);
        // The peer has the one unit since, so nine are left of gossip.
        if let Mode::Gossip(_) = mode {
            assert_eq!(regions[1].take(&mode, KEY, checks(10, 1), None, START + 4).k, 9);
        }
    }
}

#[test]
fn refunds_in_one_region_take_no_room_from_the_others() {
    let mode = Mode::Escrow(Escrow::new(per_second(30), 3).unwrap());
    let mut regions = regions(3);
    // Each reservation of 5 gives everything back, a hundred times.
    for step in 0..100 {
        let now = START + step * 1_000;
        assert_eq!(regions[0].take(&mode, KEY, checks(1, 5), None, now).k, 1, "step {step}");
        exchange(&mut regions, now);
        regions[0].refund(&mode, KEY, 5, Some(START + SECOND), now);
        exchange(&mut regions, now);
    }
    for region in &mut regions {
        assert!(
            region.take(&mode, KEY, checks(8, 1), None, START + SECOND / 2).k >= 8,
            "region {}",
            region.name
        );
    }
}

#[test]
fn grants_carry_the_whole_limit_to_the_region_that_spends() {
    for quota in [per_second(30), Quota::token_bucket(30, Rate::new(30, Duration::from_secs(3_600)))] {
        let mode = Mode::Escrow(Escrow::new(quota, 3).unwrap());
        let mut regions = regions(3);
        let mut admitted = 0;
        for step in 0..20 {
            let now = START + step * 1_000;
            admitted += regions[0].take(&mode, KEY, checks(30, 1), None, now).k;
            exchange(&mut regions, now);
        }
        assert_eq!(admitted, 30, "{quota}");
    }
}

#[test]
fn quotas_that_regions_cannot_share_are_config_errors() {
    let second = Duration::from_secs(1);
    let first_hit = Quota::fixed_window(10, second);
    let counting = Quota::sliding_log(10, second).count_denied();
    for quota in [first_hit, counting, Quota::in_flight(3)] {
        assert!(Gossip::new(quota, 2).is_err() && Escrow::new(quota, 2).is_err(), "{quota}");
    }
    assert!(Gossip::new(per_second(10), 1).is_err(), "one region");
    for quota in [Quota::sliding_log(10, second), Quota::sliding_counter(10, second), per_second(1)] {
        assert!(Gossip::new(quota, 2).is_ok() && Escrow::new(quota, 2).is_err(), "{quota}");
    }
}
