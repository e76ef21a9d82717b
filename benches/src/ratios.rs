//! What is promised, as ratios within one run.

use crate::case::Case;
use crate::measure::Round;
use crate::rounds::{Row, median};
use crate::script_alone::Scripts;
use crate::subjects::Kind;

#[derive(Debug)]
pub(crate) struct Ratio {
    pub(crate) name: &'static str,
    pub(crate) what: String,
    pub(crate) value: Option<f64>,
    pub(crate) floor: Option<f64>,
    pub(crate) aim: Option<f64>,
}

pub(crate) fn all(rows: &[Row], scripts: Option<&Scripts>) -> Vec<Ratio> {
    let rows = Rows(rows);
    let mut ratios = Vec::new();
    let mut add = |name, what: &str, value, floor, aim| {
        ratios.push(Ratio { name, what: what.to_owned(), value, floor: Some(floor), aim: Some(aim) });
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
    let many = rows.leased_over_governor(Case::Lease100k);
    let one = rows.leased_over_governor(Case::LeaseOne);
    add("lease_vs_governor_100k", "leased, 100,000 keys, to governor", many, 0.7, 1.0);
    add("lease_vs_governor_one", "leased, one key, to governor", one, 0.7, 1.0);
    let smaller = many.zip(one).map(|(many, one)| many.min(one));
    add("lease_vs_governor", "leased, to governor, the smaller", smaller, 0.7, 1.0);
    let wall = scripts.map(Scripts::ours_over_bare);
    add("script_vs_bare", "the script alone, to GET + SET PX", wall, 0.6, 0.75);
    let cpu = scripts.and_then(Scripts::ours_over_bare_by_cpu);
    add("script_vs_bare_cpu", "the same, by Redis's CPU time", cpu, 0.6, 0.75);
    ratios
}

struct Rows<'a>(&'a [Row]);

impl<'a> Rows<'a> {
    fn usable(&self, case: Case) -> impl Iterator<Item = &'a Row> {
        self.0.iter().filter(move |row| row.case == case && row.is_usable())
    }

    fn on_main(&self, case: Case, name: &str) -> Option<&'a Row> {
        self.usable(case).find(|row| row.is_main && row.info.name == name)
    }

    fn ours_over(&self, case: Case, name: &str) -> Option<f64> {
        over(self.on_main(case, "tidegate")?, self.on_main(case, name)?, Round::per_second)
    }

    fn alone(&self) -> Option<f64> {
        let p50 = |round: &Round| round.took_ns.value_at_quantile(0.5) as f64;
        over(self.on_main(Case::Alone, "multiplexed")?, self.on_main(Case::Alone, "tidegate")?, p50)
    }

    fn leased_over_governor(&self, case: Case) -> Option<f64> {
        over(self.on_main(case, "tidegate-lease")?, self.on_main(case, "governor")?, Round::per_second)
    }

    /// Between subjects of one server; the smallest over the servers, and whom it is to.
    fn over_best_peer(&self, case: Case) -> (Option<f64>, String) {
        let ours = self.usable(case).filter(|row| row.info.kind == Kind::Ours);
        let against = |ours: &'a Row| {
            let peers =
                self.usable(case).filter(|row| row.info.kind == Kind::Peer && row.server == ours.server);
            let best = peers.max_by(|a, b| a.per_second().total_cmp(&b.per_second()))?;
            Some((over(ours, best, Round::per_second)?, best))
        };
        match ours.filter_map(against).min_by(|a, b| a.0.total_cmp(&b.0)) {
            Some((value, best)) => (Some(value), format!("{}, {}", best.info.name, best.server)),
            None => (None, "none took part".to_owned()),
        }
    }
}

/// The median of the rounds' ratios: what a round is disturbed by is mostly in both.
fn over(a: &Row, b: &Row, of: impl Fn(&Round) -> f64) -> Option<f64> {
    let ratio = median(a.rounds.iter().zip(&b.rounds).map(|(a, b)| of(a) / of(b)).collect());
    ratio.is_finite().then_some(ratio)
}
