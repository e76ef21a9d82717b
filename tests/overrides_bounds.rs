//! A hash of overrides that another program filled is read up to the stated limits.

use std::sync::{Arc, Mutex};

use tidegate::{Event, Limiter, Observer, Quota, Source, Switch};
use tidegate_testkit::Server;

use crate::support::fixture::{HOUR, builder, namespace, soon};

const QUOTA: Quota = Quota::fixed_window(7, HOUR);

/// Records the warnings of one code.
#[derive(Clone, Default)]
struct Warned(Arc<Mutex<Vec<String>>>);

impl Observer for Warned {
    fn on(&self, event: &Event<'_>) {
        if let Event::Warned(warning) = event
            && warning.code() == "overrides-left-out"
        {
            self.0.lock().unwrap().push(warning.to_string());
        }
    }

    fn reports_warnings(&self) -> bool {
        true
    }
}

fn limiter(server: &Server, namespace: &str) -> (Limiter, Warned) {
    let warned = Warned::default();
    let builder = builder(server.url()).namespace(namespace).observer(warned.clone());
    (builder.build().unwrap(), warned)
}

/// Runs a script that writes to the hash, as another program could.
fn write(server: &Server, namespace: &str, script: &str) {
    let key = format!("{namespace}:1:overrides");
    server.cli(&["EVAL", script, "1", &key]).unwrap();
}

async fn is_warned(warned: &Warned, message: &str) {
    soon("the overrides that are left out are reported", async || !warned.0.lock().unwrap().is_empty()).await;
    let first = warned.0.lock().unwrap()[0].clone();
    assert!(first.contains(message), "{first}");
}

#[tokio::test]
async fn more_overrides_than_the_maximum_are_left_out_with_a_warning() {
    let (server, namespace) = (tidegate_testkit::shared(), namespace());
    let fill = "for i = 1, 10000 do redis.call('HSET', KEYS[1], 'override api:k' .. i, 'fixed_window 3 1000000 0 0') end \
                redis.call('HSET', KEYS[1], 'changed', '5')";
    write(&server, &namespace, fill);
    let (limiter, warned) = limiter(&server, &namespace);
    assert_eq!(limiter.control().overrides().await.unwrap().len(), 4_096);
    assert!(limiter.gate("api", QUOTA).check("other").await.unwrap().is_allowed());
    is_warned(&warned, &format!("5904 overrides in {namespace}:1:overrides are not followed")).await;
}

#[tokio::test]
async fn huge_override_is_left_out_with_a_warning_and_the_others_are_followed() {
    let (server, namespace) = (tidegate_testkit::shared(), namespace());
    let fill = "redis.call('HSET', KEYS[1], 'override api:k', string.rep('x', 1000000), \
                string.rep('y', 1000000), 'z', 'switch api', 'closed', 'changed', string.rep('9', 1000000))";
    write(&server, &namespace, fill);
    let (limiter, warned) = limiter(&server, &namespace);
    let gate = limiter.gate("api", QUOTA);
    soon("the switch is followed", async || gate.check("x").await.unwrap().source() == Source::Switch).await;
    is_warned(&warned, "2 overrides in ").await;
    assert_eq!(limiter.control().current_switch("api"), Some(Switch::Closed));
}
