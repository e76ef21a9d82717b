//! Checks that reach Redis after all their callers have given them up charge nothing.

use std::time::Duration;

use tidegate::{Quota, Source};
use tidegate_testkit::{Fault, Proxy, Server};

use crate::support::fixture::{HOUR, builder, builder_as_is, calls, soon};

/// The delay of a late call.
const LATE: Duration = Duration::from_secs(1);

#[tokio::test]
async fn timed_out_check_that_the_fallback_admits_is_charged_once() {
    let server = Server::process(&[]).unwrap();
    let proxy = Proxy::start(server.url()).unwrap();
    let quota = Quota::fixed_window(20, HOUR);
    let settings = builder_as_is(&proxy.url()).namespace("late").deadline(LATE / 10).instances(1);
    let gate = settings.build().unwrap().gate("gate", quota);
    let seen = builder(server.url()).namespace("late").build().unwrap().gate("gate", quota);
    soon("the process is connected", async || gate.check("x").await.unwrap().source() == Source::Redis).await;
    let admitted = 20 - seen.peek("x").await.unwrap().remaining();
    let evals = || calls(&server, "evalsha") + calls(&server, "eval");
    let before = evals();
    proxy.set(Fault::Late(LATE));
    let decision = gate.key("x").cost(3).check().await.unwrap();
    assert_eq!((decision.is_allowed(), decision.source()), (true, Source::Local));
    soon("the late call has arrived", async || evals() > before).await;
    proxy.set(Fault::None);
    soon("the fallback's units are charged", async || {
        seen.peek("x").await.unwrap().remaining() <= 20 - admitted - 3
    })
    .await;
    tokio::time::sleep(LATE).await;
    assert_eq!(seen.peek("x").await.unwrap().remaining(), 20 - admitted - 3);
}
