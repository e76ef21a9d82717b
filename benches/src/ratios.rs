//! The promised performance, as ratios within one run.

use crate::case::Case;
use crate::measure::Round;
use crate::rounds::{Row, median};
use crate::script_alone::Scripts;
use crate::subjects::Kind;

#[derive(Debug)]
pub(crate) struct Ratio {
    pub(crate) name: &'static str,
    pub(crate) description: String,
    pub(crate) value: Option<f64>,
    /// The reason if there is no value, else the failed peers that the value leaves out.
    pub(crate) note: Option<String>,
    pub(crate) floor: Option<f64>,
    pub(crate) aim: Option<f64>,
}

/// A ratio, or the reason why there is none.
type Measured = Result<f64, String>;

pub(crate) fn all(rows: &[Row], scripts: Option<&Scripts>) -> Vec<Ratio> {
    let rows = Rows(rows);
    let mut ratios = Vec::new();
    let mut add = |name, description: &str, measured: Measured, floor, aim| {
        let (value, note) = match measured {
            Ok(value) => (Some(value), None),
            Err(why) => (None, Some(why)),
        };
        ratios.push(Ratio {
            name,
            description: description.to_owned(),
            value,
            note,
            floor: Some(floor),
            aim: Some(aim),
        });
    };
    let over = |case, name| rows.ours_over(case, name);
    add("unlike_vs_pool", "unlike keys, to a pool", over(Case::Unlike, "pool"), 4.0, 5.0);
    let value = over(Case::Unlike, "multiplexed");
    add("unlike_vs_multiplexed", "unlike keys, to one connection", value, 1.5, 2.0);
    add("hot_vs_pool", "one hot key, to a pool", over(Case::Hot, "pool"), 35.0, 60.0);
    let value = over(Case::Hot, "multiplexed");
    add("hot_vs_multiplexed", "one hot key, to one connection", value, 10.0, 20.0);
    add("alone", "alone, p50 of one connection / ours", rows.alone(), 0.92, 0.98);
    let (value, peer) = rows.over_best_peer(Case::Unlike);
    add("unlike_vs_best_peer", &format!("unlike keys, to the best peer ({peer})"), value, 1.5, 3.0);
    let (value, peer) = rows.over_best_peer(Case::Hot);
    add("hot_vs_best_peer", &format!("one hot key, to the best peer ({peer})"), value, 10.0, 20.0);
    let over_governor = |case, name| rows.over_governor(case, name);
    let many = over_governor(Case::Lease100k, "tidegate-lease");
    let one = over_governor(Case::LeaseOne, "tidegate-lease");
    add("lease_vs_governor_100k", "leased, 100,000 keys, to governor", many.clone(), 0.7, 1.0);
    add("lease_vs_governor_one", "leased, one key, to governor", one.clone(), 0.7, 1.0);
    let smaller = many.and_then(|many| Ok(many.min(one?)));
    add("lease_vs_governor", "leased, to governor, the smaller", smaller, 0.7, 1.0);
    for (name, description, case, floor, aim) in [
        ("memory_vs_governor_one", "in memory, one key, to governor", Case::MemoryOne, 0.25, 0.5),
        ("memory_vs_governor_1k", "in memory, 1,000 keys, to governor", Case::Memory1k, 0.25, 0.5),
        ("memory_vs_governor_100k", "in memory, 100,000 keys, to governor", Case::Memory100k, 0.67, 1.0),
    ] {
        add(name, description, over_governor(case, "tidegate-memory"), floor, aim);
    }
    let not_measured = || NOT_MEASURED.to_owned();
    let wall = scripts.map(Scripts::ours_over_bare).ok_or_else(not_measured);
    add("script_vs_bare", "the script alone, to GET + SET PX", wall, 0.6, 0.75);
    let cpu = scripts.and_then(Scripts::ours_over_bare_by_cpu).ok_or_else(not_measured);
    add("script_vs_bare_cpu", "the same, by Redis's CPU time", cpu, 0.6, 0.75);
    for (name, case) in [("unlike_vs_best_peer", Case::Unlike), ("hot_vs_best_peer", Case::Hot)] {
        let failed = rows.failed_peers(case);
        if let Some(ratio) = ratios.iter_mut().find(|ratio| ratio.name == name && !failed.is_empty()) {
            ratio.note = Some(format!("left out, because failed: {}", failed.join(", ")));
        }
    }
    ratios
}

const NOT_MEASURED: &str = "not measured";

struct Rows<'a>(&'a [Row]);

impl<'a> Rows<'a> {
    fn usable(&self, case: Case) -> impl Iterator<Item = &'a Row> {
        self.0.iter().filter(move |row| row.case == case && row.is_usable())
    }

    /// Returns a subject's row on the first server, or why no ratio can be made from it.
    fn on_main(&self, case: Case, name: &str) -> Result<&'a Row, String> {
        let row = self.0.iter().find(|row| row.case == case && row.is_main && row.info.name == name);
        match row {
            Some(row) if row.is_usable() => Ok(row),
            Some(row) if row.failed.is_some() => Err(format!("left out, because failed: {name}")),
            _ => Err(NOT_MEASURED.to_owned()),
        }
    }

    fn ours_over(&self, case: Case, name: &str) -> Measured {
        over(self.on_main(case, "tidegate")?, self.on_main(case, name)?, Round::per_second)
    }

    fn alone(&self) -> Measured {
        let p50 = |round: &Round| round.took_ns.value_at_quantile(0.5) as f64;
        over(self.on_main(Case::Alone, "multiplexed")?, self.on_main(Case::Alone, "tidegate")?, p50)
    }

    fn over_governor(&self, case: Case, name: &str) -> Measured {
        over(self.on_main(case, name)?, self.on_main(case, "governor")?, Round::per_second)
    }

    /// Returns the ratio to the best peer on the same server, the smallest of all servers, with that peer's
    /// name.
    fn over_best_peer(&self, case: Case) -> (Measured, String) {
        let ours = self.usable(case).filter(|row| row.info.kind == Kind::Ours);
        let against = |ours: &'a Row| {
            let peers =
                self.usable(case).filter(|row| row.info.kind == Kind::Peer && row.server == ours.server);
            let best = peers.max_by(|a, b| a.per_second().total_cmp(&b.per_second()))?;
            Some((over(ours, best, Round::per_second).ok()?, best))
        };
        match ours.filter_map(against).min_by(|a, b| a.0.total_cmp(&b.0)) {
            Some((value, best)) => (Ok(value), format!("{}, {}", best.info.name, best.server)),
            None => (Err(NOT_MEASURED.to_owned()), "none took part".to_owned()),
        }
    }

    fn failed_peers(&self, case: Case) -> Vec<&'static str> {
        let failed = self.0.iter().filter(|row| row.case == case && row.failed.is_some());
        failed.filter(|row| row.info.kind == Kind::Peer).map(|row| row.info.name).collect()
    }
}

/// Returns the median of the rounds' ratios. A disturbance of one round mostly affects both subjects.
fn over(a: &Row, b: &Row, of: impl Fn(&Round) -> f64) -> Measured {
    let ratio = median(a.rounds.iter().zip(&b.rounds).map(|(a, b)| of(a) / of(b)).collect());
    if ratio.is_finite() { Ok(ratio) } else { Err(NOT_MEASURED.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u64 = 1_000;

    fn row(case: Case, name: &'static str, kind: Kind) -> Row {
        Row::of_one_round(case, name, kind, RATE)
    }

    fn failed(case: Case, name: &'static str, kind: Kind) -> Row {
        Row { failed: Some("5 errors, 0 answers".to_owned()), ..row(case, name, kind) }
    }

    fn ratio(rows: &[Row], name: &str) -> Ratio {
        all(rows, None).into_iter().find(|ratio| ratio.name == name).unwrap()
    }

    #[test]
    fn ratio_to_failed_peer_is_left_out_with_a_note() {
        let rows = [
            row(Case::LeaseOne, "tidegate-lease", Kind::Ours),
            row(Case::LeaseOne, "governor", Kind::Peer),
            row(Case::Lease100k, "tidegate-lease", Kind::Ours),
            failed(Case::Lease100k, "governor", Kind::Peer),
        ];
        assert_eq!(ratio(&rows, "lease_vs_governor_one").value, Some(1.0));
        for name in ["lease_vs_governor_100k", "lease_vs_governor"] {
            let ratio = ratio(&rows, name);
            assert_eq!(
                (ratio.value, ratio.note.as_deref()),
                (None, Some("left out, because failed: governor"))
            );
        }
    }

    #[test]
    fn best_peer_did_not_fail_and_note_names_failed_peers() {
        let rows = [
            row(Case::Unlike, "tidegate", Kind::Ours),
            row(Case::Unlike, "throttle-kit", Kind::Peer),
            failed(Case::Unlike, "trypema", Kind::Peer),
        ];
        let ratio = ratio(&rows, "unlike_vs_best_peer");
        assert_eq!(
            (ratio.value, ratio.note.as_deref()),
            (Some(1.0), Some("left out, because failed: trypema"))
        );
        assert!(ratio.description.contains("throttle-kit"), "{}", ratio.description);
    }

    #[test]
    fn unmeasured_ratio_has_a_note() {
        assert_eq!(ratio(&[], "alone").note.as_deref(), Some("not measured"));
    }

    #[test]
    fn only_failure_of_tidegate_fails_the_run() {
        let peer = failed(Case::Lease100k, "trypema-hybrid", Kind::Peer);
        let baseline = failed(Case::Unlike, "pool", Kind::ByHand);
        assert!(!peer.fails_the_run() && !baseline.fails_the_run());
        assert!(failed(Case::Lease100k, "tidegate-lease", Kind::Ours).fails_the_run());
        assert!(!row(Case::Lease100k, "tidegate-lease", Kind::Ours).fails_the_run());
    }
}
