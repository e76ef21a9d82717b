//! Tokens that pass through clients.

use tidegate::{Builder, Limiter, Quota, Rate, Settlement, Token};

const SECRET: [u8; 32] = [1; 32];
const OTHER: [u8; 32] = [2; 32];

fn limiter(settings: impl FnOnce(Builder) -> Builder) -> Limiter {
    settings(Limiter::builder().in_memory()).build().unwrap()
}

async fn token(limiter: &Limiter) -> Token {
    let gate = limiter.gate("tokens", Quota::token_bucket(1_000, Rate::per_minute(1)));
    let reserved = limiter.reserve([gate.key("tenant:7:secret").cost(400)]).await.unwrap();
    reserved.token().unwrap().to_string().parse().unwrap()
}

#[tokio::test]
async fn signed_token_is_accepted_only_with_the_secret() {
    let signing = limiter(|builder| builder.reservation_secret(SECRET));
    let signed = token(&signing).await;
    let rejects = async |limiter: &Limiter, token: &Token| {
        let error = limiter.commit(token, [1]).await.unwrap_err();
        assert!(error.is_config() && error.to_string().contains("reservation_secret"), "{error}");
    };
    rejects(&limiter(|builder| builder.reservation_secret(OTHER)), &signed).await;
    rejects(&limiter(|builder| builder.reservation_secret(SECRET).namespace("other")), &signed).await;
    rejects(&signing, &token(&limiter(|builder| builder)).await).await;
    // The store of this limiter has no such hold, but the token is accepted.
    let rotated = limiter(|builder| builder.reservation_secret(OTHER).reservation_secret(SECRET));
    assert_eq!(rotated.commit(&signed, [1]).await.unwrap(), [Settlement::Nothing]);
    rejects(&signing, &token(&rotated).await).await;
    assert_eq!(signing.commit(&signed, [1]).await.unwrap(), [Settlement::Settled]);
}

#[tokio::test]
async fn no_change_of_a_signed_text_is_accepted() {
    let signing = limiter(|builder| builder.reservation_secret(SECRET));
    let text = token(&signing).await.to_string();
    for at in 0..text.len() {
        for letter in ["A", "b", "7", "_"].into_iter().filter(|letter| !text[at..].starts_with(letter)) {
            let changed = format!("{}{letter}{}", &text[..at], &text[at + 1..]);
            if let Ok(token) = changed.parse::<Token>() {
                let error = signing.commit(&token, vec![0; token.checks()]).await.unwrap_err();
                assert!(error.is_config(), "{changed}: {error}");
            }
        }
        assert!(text[..at].parse::<Token>().is_err(), "cut at {at}");
    }
}

/// A forged token names no hold, so it changes nothing.
#[tokio::test]
async fn forged_token_changes_nothing() {
    let (limiter, forger) = (limiter(|builder| builder), limiter(|builder| builder));
    let gate = limiter.gate("tokens", Quota::token_bucket(1_000, Rate::per_minute(1)));
    let own = token(&limiter).await;
    let forged = token(&forger).await;
    for actual in [0, 1_000] {
        assert_eq!(limiter.commit(&forged, [actual]).await.unwrap(), [Settlement::Nothing]);
    }
    assert_eq!(gate.peek("tenant:7:secret").await.unwrap().remaining(), 600);
    assert_ne!(own, forged);
}

#[test]
fn text_that_is_no_token_is_an_error_that_says_what_to_do() {
    let long = "A".repeat(70_000);
    for text in ["", "hello", "not a token", "AQ", "Zm9v\n", "%00", &long] {
        let error = text.parse::<Token>().unwrap_err();
        assert!(error.is_config(), "{error}");
        assert!(error.to_string().contains("pass the text that `Token` displays"), "{error}");
    }
}

#[tokio::test]
async fn token_is_short_and_its_debug_shows_neither_id_nor_key() {
    let limiter = limiter(|builder| builder.reservation_secret(SECRET));
    let gate = |name: &str| limiter.gate(name, Quota::token_bucket(1_000_000, Rate::per_minute(1_000_000)));
    let gates = ["requests", "tokens.in", "tokens.out", "money"].map(gate);
    let reserved = limiter.reserve(gates.iter().map(|gate| gate.key("tenant:7").cost(400))).await.unwrap();
    let token = reserved.token().unwrap();
    let text = token.to_string();
    assert!((150..40 + 4 * 60).contains(&text.len()), "{} letters: {text}", text.len());
    let shown = format!("{token:?} {reserved:?}");
    assert!(shown.contains("tokens.in") && !shown.contains("tenant:7"), "{shown}");
    assert!(!shown.contains(&text[..16]), "{shown}");
}
