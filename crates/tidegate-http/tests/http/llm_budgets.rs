//! Budgets of language models, in the scenarios in which those of other gateways failed in public. Each test is named after
//! the report: BerriAI/litellm#26672, BerriAI/litellm#27639, wso2/api-platform#2936.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use rand::Rng;
use tidegate::quota::Calendar;
use tidegate::{Gate, HeldReservation, Limiter, Quota, Rate, Settlement};
use tidegate_http::{Charge, GateRule, Key, ModelRequest, RateLimitLayer};
use tidegate_test_support::fixture::{builder, limiter, namespace, soon};
use tidegate_test_support::world::World;
use tidegate_testkit::Server;
use tokio::sync::Barrier;

use super::llm::{Gateway, PATHS, prompt};

/// In micro-dollars.
const TEN_DOLLARS: u64 = 10_000_000;
const TTL: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 3_600);

/// A tenant's budget of a month, beside its tokens of a minute.
#[derive(Clone)]
struct Budget {
    limiter: Limiter,
    tokens: Gate,
    money: Gate,
}

impl Budget {
    fn new(limiter: &Limiter, tokens_per_minute: u64) -> Self {
        let tokens = Quota::token_bucket(tokens_per_minute, Rate::per_minute(tokens_per_minute));
        let money = Quota::calendar_window(TEN_DOLLARS, Calendar::MONTH);
        let gate = |name, quota| limiter.gate(name, quota).holds();
        Self { limiter: limiter.clone(), tokens: gate("tokens", tokens), money: gate("micro_usd", money) }
    }

    /// Reserves both or none.
    async fn reserve(&self, tokens: u64, price: u64) -> HeldReservation {
        let checks = [self.tokens.key("k").cost(tokens), self.money.key("k").cost(price)];
        self.limiter.reserve(checks).ttl(TTL).back().await.unwrap()
    }

    async fn spent(&self) -> u64 {
        TEN_DOLLARS - self.money.peek("k").await.unwrap().remaining()
    }
}

/// Prices in dollars per million tokens: 3 of the prompt, 15 of the answer.
const fn price(prompt: u64, answer: u64) -> u64 {
    3 * prompt + 15 * answer
}

/// A key with a budget of $10 spent $217. Here 1,000 requests at a time, through four instances, spend the whole budget and
/// not a micro-dollar more: each reserves the price of its prompt and of `max_tokens` before it begins.
#[tokio::test(flavor = "multi_thread")]
async fn litellm_26672_concurrent_requests_of_a_ten_dollar_key_spend_no_more_than_ten_dollars() {
    const REQUESTS: usize = 1_000;
    const RESERVED: u64 = price(2_000, 4_000);
    let (server, namespace) = (Server::process(&[]).unwrap(), namespace());
    let budgets = [0; 4].map(|_| {
        let limiter = builder(server.url()).namespace(&namespace).build().unwrap();
        Budget::new(&limiter, 1_000_000_000)
    });
    let spent = Arc::new(AtomicU64::new(0));
    loop {
        let all_have_reserved = Arc::new(Barrier::new(REQUESTS));
        let before = spent.load(Ordering::Relaxed);
        let requests = (0..REQUESTS).map(|number| {
            let (budget, spent) = (budgets[number % budgets.len()].clone(), spent.clone());
            let all_have_reserved = all_have_reserved.clone();
            tokio::spawn(async move {
                let reserved = budget.reserve(6_000, RESERVED).await;
                // No request is settled before each has been decided.
                all_have_reserved.wait().await;
                let Some(token) = reserved.token() else { return false };
                let (prompt, answer) = {
                    let mut random = rand::rng();
                    (random.random_range(0..=2_000), random.random_range(0..=4_000))
                };
                let settled = budget.limiter.commit(token, [prompt + answer, price(prompt, answer)]).await;
                assert_eq!(settled.unwrap(), [Settlement::Settled; 2]);
                spent.fetch_add(price(prompt, answer), Ordering::Relaxed);
                true
            })
        });
        let mut admitted = 0;
        for request in requests.collect::<Vec<_>>() {
            admitted += u64::from(request.await.unwrap());
        }
        assert_eq!(admitted, (TEN_DOLLARS - before) / RESERVED, "{before} were spent before");
        let now = spent.load(Ordering::Relaxed);
        assert!(now <= TEN_DOLLARS, "{now}");
        assert_eq!(budgets[0].spent().await, now);
        if admitted == 0 {
            assert!(now > TEN_DOLLARS - RESERVED, "the rest pays no request: {now}");
            return;
        }
    }
}

/// Where the model uses more than was reserved, the excess is charged: the state shows it as debt, and the next request waits
/// until it is paid.
#[tokio::test]
async fn litellm_26672_usage_above_the_reservation_is_debt_and_blocks_the_next_request() {
    let world = World::redis();
    let budget = Budget::new(&world.limiter, 1_000);
    let reserved = budget.reserve(600, 9_000_000).await;
    let settled = budget.limiter.commit(reserved.token().unwrap(), [1_600, 10_500_000]).await.unwrap();
    assert_eq!(settled, [Settlement::Settled; 2]);
    let shown = |gate: &Gate, command: &str| {
        let key = gate.redis_key("k").unwrap();
        match command {
            "GET" => world.redis_cli(&["GET", &key]),
            _ => world.redis_cli(&["HGET", &key, "used"]),
        }
    };
    // 1,600 of 1,000 tokens, and $10.50 of $10.
    let tokens = shown(&budget.tokens, "HGET");
    let used = tokens.trim_matches('"').split_once(" of 1000").unwrap().0.split_once('/').unwrap();
    assert_eq!(used.0.parse::<u64>().unwrap() / used.1.parse::<u64>().unwrap(), 1_600, "{tokens}");
    assert_eq!(shown(&budget.money, "GET"), "\"10500000\"");
    let denied = budget.reserve(1, 1).await;
    assert!(denied.token().is_none());
    assert_eq!(denied.decision().retry_after(), 31 * DAY, "until 1 February");
    let tokens_are_paid = budget.tokens.key("k").peek().await.unwrap().retry_after();
    assert_eq!(tokens_are_paid, Duration::from_millis(36_060), "601 tokens at 1,000 a minute");
}

/// Reservations of requests that never finished stayed in the counter, so that keys without spend were denied. Here a hold ends
/// at its ttl by the server's clock, whatever became of its process.
#[tokio::test]
async fn litellm_27639_unsettled_reservations_end_at_their_ttl() {
    let world = World::redis();
    let budget = Budget::new(&world.limiter, 1_000_000);
    for _ in 0..1_000 {
        assert!(budget.reserve(1_000, 10_000).await.token().is_some());
    }
    assert!(budget.reserve(0, 1).await.token().is_none());
    world.advance(TTL - Duration::from_micros(1));
    assert_eq!(budget.spent().await, TEN_DOLLARS);
    world.advance(Duration::from_micros(1));
    // A call ends at most 64 holds, so that it does not keep Redis from others: 16 end all.
    for look in 1..=16 {
        assert_eq!(budget.spent().await, TEN_DOLLARS - 10_000 * 1_000.min(64 * look));
    }
    assert!(budget.reserve(1_000, TEN_DOLLARS).await.token().is_some());
}

/// The same with processes that are killed while they stream answers.
#[tokio::test]
async fn litellm_27639_killed_gateway_leaves_no_spend_behind() {
    let mut gateway = Gateway::start_with(&[("LONGEST_ANSWER_S", "2")]);
    let mut answers = Vec::new();
    for number in 0..4 {
        let mut answer = gateway.post(1, PATHS[number % 2], &prompt("slow", 100, 400)).await;
        assert!(answer.chunk().await.unwrap().is_some());
        answers.push(answer);
    }
    let [requests, _, output, money] = gateway.used().await;
    assert_eq!((requests, output), (4, 1_600));
    assert!(money >= 15 * 1_600, "{money}");
    gateway.kill(1);
    soon("the holds of the killed process end", async || gateway.used().await == [0; 4]).await;
}

/// A budget of a month was a rate that refills all the time: a tenant that had spent it was admitted again at once. Here a
/// spent budget stays spent until the month ends, and then it is whole.
#[tokio::test]
async fn wso2_2936_spent_budget_of_a_month_stays_spent_until_the_month_ends() {
    let world = World::redis();
    let budget = Budget::new(&world.limiter, 1_000_000);
    let reserved = budget.reserve(1_000, TEN_DOLLARS).await;
    budget.limiter.commit(reserved.token().unwrap(), [1_000, TEN_DOLLARS]).await.unwrap();
    for day in 0..31_u32 {
        let denied = budget.reserve(1, 1).await;
        assert!(denied.token().is_none(), "January {}", day + 1);
        assert_eq!(denied.decision().binding().gate(), "micro_usd");
        assert_eq!(denied.decision().retry_after(), (31 - day) * DAY);
        world.advance(DAY);
    }
    assert!(budget.reserve(1, TEN_DOLLARS).await.token().is_some(), "February");
}

/// The short way of the guide: a handler that admits by the parsed body. Of 1,000 requests at a time, as many are admitted as the
/// slots permit, and each is charged the tokens that it used.
#[tokio::test]
async fn handler_that_admits_by_the_parsed_body_charges_the_tokens_that_were_used() {
    const BODY: &[u8] = br#"{"model":"mini","max_completion_tokens":900,"messages":[{"content":"hello"}]}"#;
    let server = tidegate_testkit::shared();
    let limiter = limiter(&server);
    let tokens = limiter.gate("tokens", Quota::fixed_window(40_000, DAY));
    let rule = |gate: &Gate| GateRule::new(gate.clone(), Key::header("x-tenant"));
    let limits = RateLimitLayer::of([
        rule(&limiter.gate("answers", Quota::in_flight(25))),
        rule(&tokens)
            .cost(ModelRequest::cost(|asked| asked.max_prompt_tokens() + asked.max_answer_tokens()))
            .charge(Charge::usage()),
    ]);
    let all_are_decided = Barrier::new(1_000);
    let ask = async |number: u64| {
        let (mut head, body) = Request::builder()
            .header("x-tenant", "k")
            .body(Full::new(Bytes::from_static(BODY)))
            .unwrap()
            .into_parts();
        head.extensions.insert(ModelRequest::read(body, 1_000, 100).await.unwrap());
        let admitted = limits.admit(&head).await;
        all_are_decided.wait().await;
        let admitted = admitted.ok()?;
        let used = 10 * number;
        admitted.usage().unwrap().set(used);
        let response = admitted.respond(Response::new(Full::new(Bytes::from_static(b"hi")))).await;
        response.into_body().collect().await.unwrap();
        Some(used)
    };
    let used: Vec<u64> = futures_util::future::join_all((0..1_000).map(|number| ask(number % 90)))
        .await
        .into_iter()
        .flatten()
        .collect();
    assert_eq!(used.len(), 25, "25 x 977 tokens are below 40,000");
    let used: u64 = used.iter().sum();
    let left = async || tokens.peek("k").await.unwrap().remaining();
    soon("each request is settled", async || left().await == 40_000 - used).await;
}

/// The minute's tokens and the month's money are one step: a request that one of them denies charges neither.
#[tokio::test]
async fn denied_request_reserves_neither_tokens_nor_money() {
    let server = Server::process(&[]).unwrap();
    let budget = Budget::new(&limiter(&server), 1_000);
    assert!(budget.reserve(1_000, 1).await.token().is_some());
    let denied = budget.reserve(1, 500).await;
    assert_eq!(denied.decision().binding().gate(), "tokens");
    assert_eq!(budget.spent().await, 1);
}
