//! Changes by operators, over HTTP as a browser sends them.

use std::sync::Arc;

use tidegate::Switch;
use tidegate_rules::Rules;
use tidegate_server::RateLimitService;
use tidegate_testkit::Server;

use super::fixture::{Console, OPERATOR, RULES, Session, USERS, VIEWER, client, users_quota, with_form};
use crate::support::acl;
use crate::support::fixture::builder;

fn users(console: &Console) -> tidegate::Gate {
    console.limiter().gate(USERS, users_quota())
}

/// Confirms a change, and returns the status.
async fn change(console: &Console, session: &Session, form: &[(&str, &str)]) -> u16 {
    let csrf = session.csrf(console).await;
    let form = [&[("csrf", &*csrf), ("confirmed", "yes"), ("reason", "a test")], form].concat();
    session.post(console, "/change", &form).await.status().as_u16()
}

#[tokio::test]
async fn change_is_made_only_after_a_confirmation() {
    let console = Console::start(RULES).await;
    let session = Session::begin(&console, OPERATOR).await;
    let csrf = session.csrf(&console).await;
    let form = [
        ("csrf", &*csrf),
        ("verb", "block"),
        ("gate", USERS),
        ("key", "bob"),
        ("for", "1h"),
        ("reason", "abuse"),
    ];
    let page = session.post(&console, "/change", &form).await.text().await.unwrap();
    assert!(page.contains("Block bob at shop / user for 1h?") && page.contains("abuse"), "{page}");
    assert!(users(&console).peek("bob").await.unwrap().is_allowed());
    let response = session.post(&console, "/change", &[&form[..], &[("confirmed", "yes")]].concat()).await;
    assert_eq!(response.status(), 303);
    assert_eq!(response.headers()["location"], "/key?written=bob");
    assert!(!users(&console).peek("bob").await.unwrap().is_allowed());
    let page = session.get(&console, "/key?written=bob").await.text().await.unwrap();
    assert!(page.contains("Blocked") && page.contains("ada (operator)") && page.contains("abuse"), "{page}");
    assert!(page.contains("The operator ada has blocked it."), "{page}");
    console.stop().await;
}

#[tokio::test]
async fn page_after_a_block_says_that_other_forms_of_the_key_were_not_searched() {
    let redis = Arc::new(Server::process(&[]).unwrap());
    acl::create_user(&redis);
    redis.cli(&["ACL", "SETUSER", acl::USER, "+xadd", "+xrevrange", "-scan"]).unwrap();
    // The namespace whose keys the user may use.
    let namespace = "tidegate".to_owned();
    let limiter = builder(redis.url())
        .publish_figures(true)
        .namespace(&namespace)
        .credentials(acl::USER, acl::PASSWORD);
    let rules = Rules::parse("shop.yaml", RULES).unwrap().bind(&limiter.build().unwrap());
    let console = Console::of(redis, namespace, RateLimitService::new(rules), None).await;
    let session = Session::begin(&console, OPERATOR).await;
    let csrf = session.csrf(&console).await;
    let form = [("csrf", &*csrf), ("confirmed", "yes"), ("verb", "block"), ("gate", USERS), ("key", "bob")];
    let form = [&form[..], &[("for", "1h"), ("reason", "abuse")]].concat();
    let response = session.post(&console, "/change", &form).await;
    assert_eq!(response.status(), 200);
    let page = response.text().await.unwrap();
    assert!(page.contains("Done: blocked for 1h; other forms were not searched: "), "{page}");
    assert!(!users(&console).peek("bob").await.unwrap().is_allowed());
    console.stop().await;
}

#[tokio::test]
async fn each_kind_of_change_takes_effect() {
    let console = Console::start(RULES).await;
    let session = Session::begin(&console, OPERATOR).await;
    let of_bob = |action: &'static str| vec![("verb", action), ("gate", USERS), ("key", "bob")];
    let users = users(&console);
    for _ in 0..3 {
        let _ = users.check("bob").await.unwrap();
    }
    assert_eq!(change(&console, &session, &of_bob("reset")).await, 303);
    assert_eq!(users.peek("bob").await.unwrap().remaining(), 3);

    assert_eq!(change(&console, &session, &[&of_bob("block")[..], &[("for", "1h")]].concat()).await, 303);
    assert!(!users.peek("bob").await.unwrap().is_allowed());
    assert_eq!(change(&console, &session, &of_bob("unblock")).await, 303);
    assert!(users.peek("bob").await.unwrap().is_allowed());

    let quota = [("algorithm", "fixed_window"), ("limit", "50"), ("window", "1m"), ("for", "1h")];
    assert_eq!(change(&console, &session, &[&of_bob("override")[..], &quota].concat()).await, 303);
    let overrides = console.limiter().control().overrides().await.unwrap();
    assert_eq!(overrides.len(), 1, "{overrides:?}");
    assert_eq!(change(&console, &session, &of_bob("end_override")).await, 303);

    let switch = [("verb", "switch"), ("gate", USERS), ("to", "closed")];
    assert_eq!(change(&console, &session, &switch).await, 303);
    let overrides = console.limiter().control().overrides().await.unwrap();
    assert!(
        matches!(&*overrides, [tidegate::Override::Switch { switch: Switch::Closed, .. }]),
        "{overrides:?}"
    );
    assert_eq!(change(&console, &session, &[("verb", "end_switch"), ("gate", USERS)]).await, 303);
    assert!(console.limiter().control().overrides().await.unwrap().is_empty());
    console.stop().await;
}

#[tokio::test]
async fn viewers_foreign_forms_and_mistakes_change_nothing() {
    let console = Console::start(RULES).await;
    let (viewer, operator) =
        (Session::begin(&console, VIEWER).await, Session::begin(&console, OPERATOR).await);
    let block = [("verb", "block"), ("gate", USERS), ("key", "bob"), ("for", "1h")];
    assert_eq!(change(&console, &viewer, &block).await, 403);
    assert_eq!(viewer.get(&console, "/change?verb=block").await.status(), 403);
    let without_csrf = [&block[..], &[("confirmed", "yes"), ("reason", "r")]].concat();
    assert_eq!(operator.post(&console, "/change", &without_csrf).await.status(), 403);
    let response = with_form(client().post(console.url("/change")), &without_csrf).send().await.unwrap();
    assert_eq!(response.status(), 401);
    assert_eq!(change(&console, &operator, &[("verb", "forget"), ("gate", USERS)]).await, 404);
    for (name, value) in [("for", "soon"), ("for", ""), ("gate", ""), ("reason", " ")] {
        let mut form: Vec<_> = block.iter().copied().filter(|(of, _)| *of != name).collect();
        form.push((name, value));
        let csrf = operator.csrf(&console).await;
        form.extend([("csrf", &*csrf), ("confirmed", "yes")]);
        if name != "reason" {
            form.push(("reason", "r"));
        }
        let response = operator.post(&console, "/change", &form).await;
        assert_eq!(response.status(), 400, "{name}={value}");
        let page = response.text().await.unwrap();
        assert!(
            page.contains("role=\"alert\"") && page.contains("value=\"shop.user\"") || name == "gate",
            "{page}"
        );
    }
    assert!(users(&console).peek("bob").await.unwrap().is_allowed());
    console.stop().await;
}

#[tokio::test]
async fn change_of_an_unknown_gate_is_not_offered_for_confirmation() {
    let console = Console::start(RULES).await;
    let session = Session::begin(&console, OPERATOR).await;
    let csrf = session.csrf(&console).await;
    let form =
        [("csrf", &*csrf), ("verb", "switch"), ("gate", "shop.usr"), ("to", "closed"), ("reason", "a test")];
    let response = session.post(&console, "/change", &form).await;
    assert_eq!(response.status(), 409);
    let page = response.text().await.unwrap();
    assert!(page.contains("shop.usr") && page.contains("in namespace"), "{page}");
    assert!(page.contains("list=\"gates\"") && page.contains("<option value=\"shop.user\">"), "{page}");
    let response = session.post(&console, "/change", &[&form[..], &[("force", "true")]].concat()).await;
    assert_eq!(response.status(), 200);
    let page = response.text().await.unwrap();
    assert!(page.contains("Deny all checks of shop.usr") && page.contains("it is ended"), "{page}");
    assert!(!page.contains("autofocus"), "Enter must not confirm: {page}");
    assert!(console.limiter().control().overrides().await.unwrap().is_empty());
    console.stop().await;
}

#[tokio::test]
async fn readable_name_of_a_gate_is_taken_by_a_change_and_shown_in_its_question() {
    let console = Console::start(RULES).await;
    let session = Session::begin(&console, OPERATOR).await;
    let csrf = session.csrf(&console).await;
    let form = [
        ("csrf", &*csrf),
        ("verb", "switch"),
        ("gate", "shop / user"),
        ("to", "closed"),
        ("reason", "a test"),
    ];
    let page = session.post(&console, "/change", &form).await.text().await.unwrap();
    assert!(
        page.contains("Switch shop / user closed?") && page.contains("Deny all checks of shop / user"),
        "{page}"
    );
    assert!(page.contains("name=\"gate\" value=\"shop.user\""), "the answer names the gate in Redis: {page}");
    assert_eq!(change(&console, &session, &form[1..4]).await, 303);
    assert_eq!(console.limiter().control().overrides().await.unwrap()[0].gate(), USERS);
    assert!(console.page("/overrides", 200).await.contains(">shop / user</a>"));
    console.stop().await;
}

#[tokio::test]
async fn overrides_show_the_operator_and_the_reason() {
    let console = Console::start(RULES).await;
    let session = Session::begin(&console, OPERATOR).await;
    let switch = [("verb", "switch"), ("gate", USERS), ("to", "closed")];
    assert_eq!(change(&console, &session, &switch).await, 303);
    for path in ["/overrides", "/gate?name=shop.user"] {
        let page = console.page(path, 200).await;
        assert!(page.contains("data-label=\"By\">ada<") && page.contains("a test"), "{path}: {page}");
    }
    assert!(console.page("/", 200).await.contains("href=\"/overrides\">Overrides: what is switched"));
    console.stop().await;
}

#[tokio::test]
async fn form_of_a_block_has_the_quota_for_a_gate_of_which_none_is_known() {
    let console = Console::start(RULES).await;
    let session = Session::begin(&console, OPERATOR).await;
    let page = session.get(&console, "/change?verb=block").await.text().await.unwrap();
    let field = page.split("id=\"limit\"").nth(1).and_then(|rest| rest.split('>').next()).unwrap();
    assert!(!field.contains("required"), "{page}");
    let block = [("verb", "block"), ("gate", "in-code"), ("key", "bob"), ("for", "1h"), ("force", "true")];
    let quota = [("algorithm", "fixed_window"), ("limit", "5"), ("window", "1h")];
    assert_eq!(change(&console, &session, &block).await, 409);
    assert_eq!(change(&console, &session, &[&block[..], &quota].concat()).await, 303);
    console.stop().await;
}
