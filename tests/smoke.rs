use std::time::Duration;
use tidegate::{Limiter, Quota, Rate};

#[tokio::test]
async fn smoke() {
    let server = harness::shared();
    println!("{}", server.how());
    let limiter = Limiter::builder().url(server.url()).deadline(Duration::from_secs(5)).build().unwrap();
    limiter.ready().await.unwrap();
    let w = Duration::from_secs(60);
    for (name, quota) in [
        ("tb", Quota::token_bucket(5, Rate::per_minute(5))),
        ("lb", Quota::leaky_bucket(5, Rate::per_minute(5))),
        ("fw", Quota::fixed_window(5, w)),
        ("fwc", Quota::fixed_window(5, w).aligned_to_clock()),
        ("sl", Quota::sliding_log(5, w)),
        ("slc", Quota::sliding_log(5, w).count_denied()),
        ("sc", Quota::sliding_counter(5, w)),
    ] {
        let gate = limiter.gate(name, quota);
        println!("== {quota} {}", gate.redis_key("user:42").unwrap());
        for _ in 0..6 {
            let d = gate.check("user:42").await.unwrap();
            println!("{d} {d:?}");
        }
        println!("{:?}", gate.peek("user:42").await);
        gate.refund("user:42", 2).await.unwrap();
        println!("{:?}", gate.peek("user:42").await);
        gate.block("user:42", w * 10).await.unwrap();
        println!("blocked {:?}", gate.peek("user:42").await);
        gate.unblock("user:42").await.unwrap();
        gate.penalize("user:42", 4).await.unwrap();
        println!("{:?}", gate.peek("user:42").await);
        let key = gate.redis_key("user:42").unwrap();
        let out = if name.starts_with("sl") {
            server.cli(&["ZRANGE", &key, "0", "-1", "WITHSCORES"])
        } else {
            server.cli(&["HGETALL", &key])
        };
        println!("{}\nPTTL {}", out.unwrap(), server.cli(&["PTTL", &key]).unwrap());
        gate.reset("user:42").await.unwrap();
        println!("{:?}", gate.peek("user:42").await);
    }
    let a = limiter.gate("a", Quota::token_bucket(1, Rate::per_minute(5)));
    let b = limiter.gate("b", Quota::sliding_log(5, w));
    println!("{:#?}", limiter.check_all([a.ask("x"), b.ask("x").cost(2)]).await);
    println!("{:#?}", limiter.check_all([a.ask("x"), b.ask("x").cost(2)]).await);
}
