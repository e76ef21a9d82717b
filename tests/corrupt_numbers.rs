//! Lua parses `0x10`, `1e3` and ` 16` as numbers. tidegate never writes them, so both the fast path and the
//! slow path report them as corrupt state.

use tidegate::{Gate, Quota, Rate};
use tidegate_testkit::Server;

use crate::support::fixture::{HOUR, limiter};

const KEY: &str = "user:42";

fn gates(server: &Server) -> [Gate; 3] {
    let limiter = limiter(server);
    let rate = Rate::new(1_000, 24 * HOUR);
    [
        limiter.gate("token", Quota::token_bucket(1_000, rate)),
        limiter.gate("leaky", Quota::leaky_bucket(1_000, rate)),
        limiter.gate("counter", Quota::sliding_counter(1_000, 24 * HOUR)),
    ]
}

async fn assert_corrupt(server: &Server, gate: &Gate, redis_key: &str, text: &str) {
    server.cli(&["HSET", redis_key, "used", text]).unwrap();
    let result = gate.check(KEY).await;
    assert!(result.as_ref().is_err_and(tidegate::Error::is_corrupt_state), "{text}: {result:?}");
    assert_eq!(server.cli(&["HGET", redis_key, "used"]).unwrap(), format!("\"{text}\""), "changed");
}

#[tokio::test]
async fn used_number_in_a_foreign_format_is_corrupt_state() {
    let server = tidegate_testkit::shared();
    for gate in gates(&server) {
        assert!(gate.check(KEY).await.unwrap().is_allowed());
        let redis_key = gate.redis_key(KEY).unwrap();
        let text = server.cli(&["HGET", &redis_key, "used"]).unwrap();
        let text = text.trim_matches('"');
        let rest = text.trim_start_matches(|letter: char| letter.is_ascii_digit());
        for number in
            ["0x10", "0X1f", "1e3", "1E0", "16.0", "16.", ".0", " 16", "16 ", "+16", "-0", "", "nan"]
        {
            assert_corrupt(&server, &gate, &redis_key, &format!("{number}{rest}")).await;
        }
        if let Some(since) = rest.strip_prefix("+0") {
            for number in ["0x10", "1e3", "16.0", " 16", "16 ", "+16"] {
                assert_corrupt(&server, &gate, &redis_key, &format!("1+{number}{since}")).await;
            }
        }
    }
}

#[tokio::test]
async fn time_in_a_foreign_format_is_corrupt_state() {
    let server = tidegate_testkit::shared();
    for gate in gates(&server) {
        let now = gate.check(KEY).await.unwrap().server_now_us();
        let redis_key = gate.redis_key(KEY).unwrap();
        let text = server.cli(&["HGET", &redis_key, "used"]).unwrap();
        let text = text.trim_matches('"');
        let (head, _) = text.split_at(text.len() - 16);
        // Texts as long as a time in microseconds.
        let exponent =
            format!("{}.{:011}e3", now / 1_000 / 1_000_000_000_000, now / 1_000 % 1_000_000_000_000 / 10);
        for time in
            [format!("0x{now:014x}"), exponent, format!(" {:015}", now / 10), format!("{:015} ", now / 10)]
        {
            assert_corrupt(&server, &gate, &redis_key, &format!("{head}{time}")).await;
        }
    }
}
