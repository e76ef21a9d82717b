//! Scans of a real Redis, page by page.

use std::time::Duration;

use tidegate::Quota;
use tidegate::admin::Inspector;

use crate::support::fixture::{HOUR, limiter};

#[tokio::test]
async fn pauses_between_pages_do_not_end_a_scan() {
    let server = tidegate_testkit::shared();
    let limiter = limiter(&server);
    let gate = limiter.gate("g", Quota::fixed_window(1, HOUR));
    // SCAN reads about 1,000 keys per page.
    for key in 0..2_500 {
        gate.penalize(key.to_string(), 1).await.unwrap();
    }
    let mut scan = Inspector::new(&limiter).unwrap().scan(None);
    let (mut pages, mut keys) = (0, 0);
    while let Some(page) = scan.next().await.unwrap() {
        pages += 1;
        keys += page.names.len();
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(40 * 60)).await;
        tokio::time::resume();
    }
    assert!(pages > 2 && keys >= 2_500, "{pages} pages, {keys} keys");
}
