//! Pages that try to charge units and give them back, or change limits, with all that a script can send.

use serde_json::Value;

use super::driver::Browser;
use crate::server::fixture::{Running, in_memory};
use crate::server::v1_fixture::{by_gate, post};
use crate::support::fixture::soon;

const RULES: &str =
    "{ domain: d, descriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 9 } }] }";

/// Sends a check and a refund as a script can, without asking the server first; and a check that asks. Returns nothing:
/// a script of another site cannot read the responses either.
const SCRIPT: &str = "
    const of = more => JSON.stringify({ domain: 'd', descriptors: [{ entries: [{ key: 'user', value: 'ada' }], ...more }] });
    const send = (path, init) => fetch(target + path, { method: 'POST', ...init }).catch(() => 0);
    return Promise.all([
        send('/json', { mode: 'no-cors', body: of({}) }),
        send('/json', { mode: 'no-cors', body: of({ isNegativeHits: true }) }),
        send('/json', { mode: 'no-cors', referrerPolicy: 'no-referrer', body: of({}) }),
        send('/json', { mode: 'no-cors', keepalive: true, body: new Blob([of({})], { type: '' }) }),
        send('/json', { headers: { 'content-type': 'application/json' }, body: of({}) }),
        send('/v1/check', { headers: { 'content-type': 'application/json' }, body: of({}) }),
    ]).then(() => null)";

/// Submits a form whose text is a check.
const FORM: &str = "
    const form = document.createElement('form');
    [form.method, form.action, form.enctype] = ['post', target + '/json', 'text/plain'];
    const field = document.createElement('input');
    // The browser puts an equals sign between both.
    const entries = (key, value) => `{\"entries\": [{\"key\": \"${key}\", \"value\": \"${value}`;
    field.name = `{\"domain\": \"d\", \"descriptors\": [${entries('user', 'ada')}\"}]}, ${entries('other', '')}`;
    field.value = '\"}]}]}';
    form.append(field);
    (document.body ?? document.documentElement).append(form);
    form.submit();
    return null";

async fn remaining(server: &Running) -> Value {
    post(server, "peek", &by_gate("d.user", "ada")).await.body["decision"]["remaining"].take()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_page_can_charge_units_or_give_them_back() {
    let server = Running::start(in_memory(RULES)).await;
    // Its responses are the pages of the other site.
    let other = Running::start(in_memory(RULES)).await;
    post(&server, "check", &by_gate("d.user", "ada")).await;
    // Both names lead to this machine: the first one by a site's own server, the second one rebound to the service.
    let browser = Browser::start_with(&["--host-resolver-rules=MAP *.example 127.0.0.1"]).await;
    let (port, other_port) = (server.http_addr.port(), other.http_addr.port());
    for (page, target) in [
        (format!("http://evil.example:{other_port}/livez"), server.url("")),
        (format!("http://127.0.0.1:{other_port}/livez"), server.url("")),
        (format!("http://evil.example:{other_port}/livez"), format!("http://localhost:{port}")),
        (format!("http://rebound.example:{port}/livez"), String::new()),
    ] {
        for script in [SCRIPT, FORM] {
            browser.visit(&page).await;
            browser.eval(&format!("const target = '{target}';{script}")).await;
        }
        soon("the form is sent", async || browser.eval("return location.pathname").await == "/json").await;
        assert_eq!(remaining(&server).await, 8, "{page}");
    }
    browser.close().await;
    assert!(server.stop().await);
    assert!(other.stop().await);
}
