//! The results of the law of adaptive limits in simulated services, compared with fixed limits.

use tidegate::reference::adapt::{Adaptation, Bounds, Report};

use super::simulation::{Outcome, Phase, Policy, Scenario, Shape, run};

const BOUNDS: Bounds = Bounds { min: 8, max: 1_000, tolerance: 1.5 };
const ADAPTIVE: Policy = Policy::Adaptive(BOUNDS);
const LATENCY_US: f64 = 50_000.0;

fn scenario(shape: Shape, phases: &[Phase], seconds: f64) -> Scenario {
    Scenario { shape, phases: phases.to_vec(), seconds, processes: 3, seed: 1 }
}

/// Returns a service with `servers` servers under twice the load that it can serve.
fn overloaded(shape: Shape, servers: usize, latency_us: f64, seconds: f64) -> Scenario {
    let arrivals_per_s = 2.0 * servers as f64 / latency_us * 1e6;
    scenario(shape, &[Phase::new(0.0, arrivals_per_s, servers, latency_us)], seconds)
}

/// Runs fixed limits of 1 to 3 times the servers. Returns the smallest with a throughput of 99 % of the best one.
fn best_fixed(scenario: &Scenario, from_s: f64) -> (u64, Outcome) {
    let servers = scenario.phases[0].servers as u64;
    let limits = [4, 5, 6, 8, 12].map(|quarters| (servers * quarters).div_ceil(4));
    let outcomes = limits.map(|limit| (limit, run(scenario, Policy::Fixed(limit))));
    let throughput = |outcome: &Outcome| outcome.throughput(from_s, scenario.seconds);
    let best = outcomes.iter().map(|(_, outcome)| throughput(outcome)).fold(0.0, f64::max);
    outcomes.into_iter().find(|(_, outcome)| throughput(outcome) >= 0.99 * best).expect("the best one")
}

/// Asserts that the throughput is at least this part of that of the best fixed limit, and the 99th percentile of
/// the latency at most 1.6 times that of it.
fn assert_near_the_best_fixed_limit(scenario: &Scenario, part: f64) {
    let (from_s, to_s) = (scenario.seconds / 3.0, scenario.seconds);
    let (limit, best) = best_fixed(scenario, from_s);
    let adaptive = run(scenario, ADAPTIVE);
    let (throughput, best_throughput) = (adaptive.throughput(from_s, to_s), best.throughput(from_s, to_s));
    assert!(
        throughput >= part * best_throughput,
        "{scenario:?}: {throughput:.1} per s, with a limit of {limit} {best_throughput:.1}"
    );
    let (p99, best_p99) = (adaptive.quantile_ms(0.99, from_s, to_s), best.quantile_ms(0.99, from_s, to_s));
    assert!(
        p99 <= 1.6 * best_p99,
        "{scenario:?}: {p99:.1} ms at most for 99 %, with a limit of {limit} {best_p99:.1} ms"
    );
}

#[test]
fn throughput_and_latency_are_near_those_of_the_best_fixed_limit() {
    for (shape, servers, latency_us, seconds, part) in [
        (Shape::Lognormal(0.5), 50, LATENCY_US, 120.0, 0.9),
        (Shape::Lognormal(1.0), 20, LATENCY_US, 120.0, 0.9),
        (Shape::Lognormal(1.0), 20, 2_000_000.0, 7_200.0, 0.9),
        (Shape::HeavyTail, 50, LATENCY_US, 180.0, 0.8),
        (Shape::TwoKinds, 20, LATENCY_US, 600.0, 0.8),
    ] {
        assert_near_the_best_fixed_limit(&overloaded(shape, servers, latency_us, seconds), part);
    }
}

#[test]
fn limit_reaches_the_capacity_within_12_windows() {
    let outcome = run(&overloaded(Shape::Lognormal(1.0), 200, LATENCY_US, 13.0), ADAPTIVE);
    assert!(outcome.limits[12] >= 200.0, "{:?}", outcome.limits);
}

#[test]
fn baseline_does_not_drift_in_an_hour_of_overload() {
    let outcome = run(&overloaded(Shape::Lognormal(1.0), 10, LATENCY_US, 3_600.0), ADAPTIVE);
    let baselines_us = &outcome.baselines_us[60..];
    let highest = baselines_us.iter().copied().fold(0.0, f64::max);
    assert!(highest < 1.6 * LATENCY_US, "baseline of {highest} us");
    let end = outcome.mean_limit(3_000, 3_600);
    assert!((10.0..30.0).contains(&end), "limit of {end} for 10 servers");
}

#[test]
fn limit_does_not_grow_while_it_is_not_used() {
    // 5 operations are in flight on average.
    let phases = [Phase::new(0.0, 100.0, 1_000, LATENCY_US)];
    let outcome = run(&scenario(Shape::Lognormal(0.5), &phases, 300.0), ADAPTIVE);
    let highest = outcome.limits.iter().copied().fold(0.0, f64::max);
    assert!(highest < 40.0, "limit of {highest}");
}

#[test]
fn limit_of_a_service_without_load_denies_almost_nothing() {
    // 40 of 50 servers are busy on average.
    let phases = [Phase::new(0.0, 800.0, 50, LATENCY_US)];
    let outcome = run(&scenario(Shape::Lognormal(1.0), &phases, 300.0), ADAPTIVE);
    let (denied, admitted) = (outcome.denials(30.0, 300.0), outcome.throughput(30.0, 300.0) * 270.0);
    assert!((denied as f64) < 0.02 * admitted, "{denied} of {admitted}");
}

#[test]
fn cut_to_a_third_of_the_capacity_is_followed_within_10_windows_and_back() {
    let phase = |from_s, servers| Phase::new(from_s, 1_200.0, servers, LATENCY_US);
    let phases = [phase(0.0, 48), phase(100.0, 16), phase(200.0, 48)];
    let outcome = run(&scenario(Shape::Lognormal(0.5), &phases, 300.0), ADAPTIVE);
    let (whole, cut, back) =
        (outcome.mean_limit(60, 100), outcome.mean_limit(110, 200), outcome.mean_limit(215, 300));
    assert!((48.0..110.0).contains(&whole), "{whole}");
    assert!((14.0..40.0).contains(&cut), "{cut}");
    assert!((48.0..110.0).contains(&back), "{back}");
    let throughput = outcome.throughput(215.0, 300.0);
    assert!(throughput > 0.9 * 960.0, "{throughput}");
}

#[test]
fn slower_service_without_a_queue_becomes_the_baseline() {
    let phase = |from_s, latency_us| Phase::new(from_s, 300.0, 1_000, latency_us);
    let phases = [phase(0.0, LATENCY_US), phase(60.0, 3.0 * LATENCY_US)];
    let outcome = run(&scenario(Shape::Lognormal(0.5), &phases, 180.0), ADAPTIVE);
    let baseline_us = outcome.baselines_us[179];
    assert!((2.4..3.6).contains(&(baseline_us / LATENCY_US)), "baseline of {baseline_us} us");
    let (denied, admitted) = (outcome.denials(90.0, 180.0), outcome.throughput(90.0, 180.0) * 90.0);
    assert!((denied as f64) < 0.05 * admitted, "{denied} of {admitted}");
}

#[test]
fn faster_service_becomes_the_baseline() {
    let phase = |from_s, latency_us| Phase::new(from_s, 3_000.0, 20, latency_us);
    let phases = [phase(0.0, LATENCY_US), phase(60.0, LATENCY_US / 3.0)];
    let outcome = run(&scenario(Shape::Lognormal(0.5), &phases, 300.0), ADAPTIVE);
    let baseline_us = outcome.baselines_us[299];
    assert!((0.25..0.5).contains(&(baseline_us / LATENCY_US)), "baseline of {baseline_us} us");
    let end = outcome.mean_limit(200, 300);
    assert!((20.0..60.0).contains(&end), "limit of {end} for 20 servers");
}

#[test]
fn limit_ends_at_the_lower_bound_and_recovers() {
    let phase = |from_s, servers| Phase::new(from_s, 1_000.0, servers, LATENCY_US);
    let phases = [phase(0.0, 50), phase(60.0, 1), phase(160.0, 50)];
    let outcome = run(&scenario(Shape::Lognormal(0.5), &phases, 260.0), ADAPTIVE);
    let lowest = outcome.limits.iter().copied().fold(f64::MAX, f64::min);
    assert!(lowest >= 8.0, "{lowest}");
    let cut = outcome.mean_limit(90, 160);
    assert!(cut < 20.0, "{cut} for one server");
    let back = outcome.throughput(200.0, 260.0);
    assert!(back > 900.0, "{back}");
}

#[test]
fn overloads_shrink_the_limit_to_what_the_service_accepts() {
    // Operations beyond the servers are rejected at once, so the latency never rises.
    let phase = Phase { rejects_above: 50, ..Phase::new(0.0, 2_000.0, 50, LATENCY_US) };
    let outcome = run(&scenario(Shape::Lognormal(0.5), &[phase], 180.0), ADAPTIVE);
    let limits = outcome.limits(60, 180);
    let highest = limits.iter().copied().fold(0.0, f64::max);
    assert!(highest < 80.0, "{highest}");
    let throughput = outcome.throughput(60.0, 180.0);
    assert!(throughput > 0.85 * 1_000.0, "{throughput}");
}

#[test]
fn limit_is_kept_over_an_idle_period() {
    let phase = |from_s, arrivals_per_s| Phase::new(from_s, arrivals_per_s, 50, LATENCY_US);
    let phases = [phase(0.0, 2_000.0), phase(60.0, 0.0), phase(120.0, 2_000.0)];
    let outcome = run(&scenario(Shape::Lognormal(0.5), &phases, 180.0), ADAPTIVE);
    let throughput = outcome.throughput(121.0, 180.0);
    assert!(throughput > 900.0, "{throughput}");
}

#[test]
fn operation_that_hung_for_ten_hours_holds_no_window_open() {
    let bounds = Bounds { min: 8, max: 400, tolerance: 1.5 };
    let mut adaptation = Adaptation::new(&bounds, 0);
    let (hung_ms, mut now_us) = (36e6, 0);
    let mut report = Report {
        operations: 401,
        busy_us: 8_000_000,
        peak: 8,
        ended_ms: 8_000.0 + hung_ms,
        squares: 160_000.0 + hung_ms * hung_ms,
        ..Report::default()
    };
    while adaptation.limit(&bounds) == 8 {
        now_us += adaptation.report(&report, &bounds, now_us).wait_us;
        report = Report::default();
    }
    assert!(now_us <= 4_000_000, "{now_us}");
}

#[test]
fn one_process_and_ten_reach_the_same_limit() {
    let mut scenario = overloaded(Shape::Lognormal(1.0), 20, LATENCY_US, 180.0);
    let limits = [1, 10].map(|processes| {
        scenario.processes = processes;
        run(&scenario, ADAPTIVE).mean_limit(60, 180)
    });
    let ratio = limits[0] / limits[1];
    assert!((0.7..1.4).contains(&ratio), "{limits:?}");
}

#[test]
fn probes_are_at_most_a_twentieth_of_the_time() {
    let outcome = run(&overloaded(Shape::Lognormal(1.0), 20, LATENCY_US, 1_200.0), ADAPTIVE);
    let probing = outcome.probing.iter().filter(|is_probing| **is_probing).count();
    assert!((5..=60).contains(&probing), "{probing} of 1200 s");
}

/// Prints the table of docs/measurements/2026-11-adaptive.md.
#[test]
#[ignore = "prints a table"]
fn long_form_of_the_comparison() {
    let step = |from_s, servers, factor| Phase::new(from_s, 1_500.0, servers, factor * LATENCY_US);
    let sigma = Shape::Lognormal(1.0);
    let rejecting = Phase { rejects_above: 50, ..Phase::new(0.0, 2_000.0, 50, LATENCY_US) };
    let cases = [
        ("twice the capacity, 50 servers, 50 ms", overloaded(sigma, 50, LATENCY_US, 600.0)),
        ("twice, 4 servers, 50 ms, lower bound 1", overloaded(sigma, 4, LATENCY_US, 600.0)),
        ("twice, 20 servers, 2 s", overloaded(sigma, 20, 2_000_000.0, 7_200.0)),
        ("twice, an hour, 20 servers, 50 ms", overloaded(sigma, 20, LATENCY_US, 3_600.0)),
        ("twice, infinite variance", overloaded(Shape::HeavyTail, 50, LATENCY_US, 600.0)),
        ("twice, 9 of 10 are hits of a cache", overloaded(Shape::TwoKinds, 50, LATENCY_US, 600.0)),
        ("0.8 of the capacity", scenario(sigma, &[Phase::new(0.0, 800.0, 50, LATENCY_US)], 600.0)),
        (
            "capacity cut to a third and back, by 100 s",
            scenario(sigma, &[step(0.0, 48, 1.0), step(100.0, 16, 1.0), step(200.0, 48, 1.0)], 300.0),
        ),
        (
            "3 times slower, then 6 times faster, by 100 s",
            scenario(sigma, &[step(0.0, 50, 1.0), step(100.0, 50, 3.0), step(200.0, 50, 0.5)], 400.0),
        ),
        ("rejects beyond 50 in flight", scenario(sigma, &[rejecting], 600.0)),
    ];
    eprintln!("| service | policy | per s | denied % | p50 ms | p99 ms | limit | lowest | highest |");
    eprintln!("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for (name, scenario) in cases {
        let from_s = scenario.seconds / 4.0;
        let (best, _) = best_fixed(&scenario, from_s);
        let bounds = Bounds { min: if scenario.phases[0].servers < 8 { 1 } else { 8 }, ..BOUNDS };
        let policies = [
            (format!("fixed, {best} (the best)"), Policy::Fixed(best)),
            ("adaptive".to_owned(), Policy::Adaptive(bounds)),
            ("Gradient2".to_owned(), Policy::Gradient2 { max: 1_000.0 }),
        ];
        for (policy, kind) in policies {
            let outcome = run(&scenario, kind);
            let quantile = |part| outcome.quantile_ms(part, from_s, scenario.seconds);
            let denied = outcome.denials(from_s, scenario.seconds) as f64;
            let served = outcome.throughput(from_s, scenario.seconds) * (scenario.seconds - from_s);
            let limits = outcome.limits(from_s as usize, scenario.seconds as usize);
            eprintln!(
                "| {name} | {policy} | {:.1} | {:.2} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} |",
                outcome.throughput(from_s, scenario.seconds),
                100.0 * denied / (denied + served),
                quantile(0.5),
                quantile(0.99),
                outcome.mean_limit(from_s as usize, scenario.seconds as usize),
                limits.iter().copied().fold(f64::MAX, f64::min),
                limits.iter().copied().fold(0.0, f64::max),
            );
        }
    }
}
