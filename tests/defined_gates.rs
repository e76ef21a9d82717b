//! Two gates of one name with different quotas are reported: they share their counts.

use std::sync::{Arc, Mutex};

use tidegate::{Event, Limiter, Observer, Quota, Rate};

use crate::support::fixture::{HOUR, builder};

#[derive(Clone, Default)]
struct Warned(Arc<Mutex<Vec<String>>>);

impl Observer for Warned {
    fn on(&self, event: &Event<'_>) {
        if let Event::Warned(warning) = event {
            self.0.lock().unwrap().push(warning.to_string());
        }
    }

    fn reports_warnings(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn second_quota_of_a_gate_is_reported_once_for_each_name() {
    let (server, warned) = (tidegate_testkit::shared(), Warned::default());
    for builder in [builder(server.url()), Limiter::builder().in_memory()] {
        let limiter = builder.observer(warned.clone()).build().unwrap();
        let of = |units| Quota::token_bucket(units, Rate::per_hour(units));
        let first = limiter.gate("login", of(5));
        let second = limiter.gate("login", of(9));
        for _ in 0..3 {
            assert!(first.check("ada").await.unwrap().is_allowed());
        }
        // They share their counts, and the second has 4 units more.
        assert_eq!(second.check("ada").await.unwrap().remaining(), 5);
        for units in [5, 9, 7] {
            let _ = limiter.gate("login", of(units));
        }
        // In the same second, in which a warning with this code was reported already.
        let _ = (limiter.gate("signup", of(1)), limiter.gate("signup", of(2)));
        let expected = [
            "two gates are named `login` and share their counts, but have different quotas: 5/h burst 5 and 9/h burst 9; rename one of them, or make gates whose quota is chosen at run time by `Limiter::try_gate` [gate-redefined]",
            "two gates are named `signup` and share their counts, but have different quotas: 1/h burst 1 and 2/h burst 2; rename one of them, or make gates whose quota is chosen at run time by `Limiter::try_gate` [gate-redefined]",
        ];
        assert_eq!(std::mem::take(&mut *warned.0.lock().unwrap()), expected);
    }
}

#[test]
fn gates_that_share_no_counts_or_are_chosen_at_run_time_are_not_reported() {
    let warned = Warned::default();
    let limiter = Limiter::builder().in_memory().observer(warned.clone()).build().unwrap();
    // Equal; of another algorithm; of another window.
    let quotas = [Quota::fixed_window(1, HOUR), Quota::fixed_window(1, HOUR), Quota::sliding_log(2, HOUR)];
    for quota in quotas.into_iter().chain([Quota::fixed_window(3, HOUR * 2)]) {
        let _ = limiter.gate("login", quota);
    }
    for units in 1..5 {
        limiter.try_gate("login", Quota::fixed_window(units, HOUR)).unwrap();
    }
    let _ = limiter.gate("not valid", Quota::fixed_window(1, HOUR));
    let _ = limiter.gate("not valid", Quota::fixed_window(2, HOUR));
    assert_eq!(*warned.0.lock().unwrap(), [""; 0]);
}
