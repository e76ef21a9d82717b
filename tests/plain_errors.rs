//! Errors of redis-rs and of a pool reach the caller in plain words, without the output of `Debug`.

use std::time::Duration;

use tidegate::{Error, Limiter, deadpool_redis};

use crate::support::fixture::{PATIENCE, closed_port};

/// Returns whether a capital letter follows a small one, as in the name of a variant: `InvalidClientConfig`.
fn is_camel_case(word: &str) -> bool {
    let letters: Vec<char> = word.chars().collect();
    letters.windows(2).any(|pair| pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase())
}

#[track_caller]
fn assert_plain(error: &Error) {
    let text = error.to_string();
    let debug = text.split(|letter: char| !letter.is_ascii_alphanumeric()).find(|word| is_camel_case(word));
    assert_eq!(debug, None, "{text}");
    assert!(!text.contains(" - ") && !text.contains("Some(") && !text.contains('{'), "{text}");
}

#[test]
fn url_error_names_the_cause_and_nothing_else() {
    for (url, shown, cause) in [
        ("localhost", "…", "Redis URL did not parse"),
        ("http://127.0.0.1", "…", "Redis URL did not parse"),
        ("redis://host:notaport", "redis://…", "Redis URL did not parse"),
        ("redis://host/notadatabase", "redis://host", "Invalid database number"),
        ("redis://host?protocol=nonsense", "redis://host", "Invalid protocol version"),
        ("redis://0.0.0.0", "redis://0.0.0.0", "Cannot connect to a wildcard address (0.0.0.0 or ::)"),
        (
            "redis://ann:a/b@host",
            "redis://…",
            "an `@` follows a `/`, `?` or `#`, or the host is percent-encoded",
        ),
    ] {
        let error = Limiter::open(url).expect_err(url);
        let expected = format!(
            "the Redis URL {shown} cannot be used ({cause}): it should look like redis://127.0.0.1:6379; \
             percent-encode a user and password, or pass them to `credentials`"
        );
        assert_eq!(error.to_string(), expected, "{url}");
        assert_plain(&error);
    }
}

/// Returns the error of a limiter on a pool that connects to `url`.
async fn pool_error(url: &str) -> Error {
    let pool = deadpool_redis::Config::from_url(url).create_pool(Some(deadpool_redis::Runtime::Tokio1));
    let limiter = Limiter::builder().pool(pool.unwrap()).deadline(PATIENCE).build().unwrap();
    let error = limiter.ready().await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    error
}

#[tokio::test]
async fn connect_error_is_the_same_with_and_without_a_pool() {
    let server = tidegate_testkit::Server::process(&[]).unwrap();
    server.cli(&["CONFIG", "SET", "requirepass", "secret"]).unwrap();
    let port = server.url().rsplit(':').next().unwrap().trim_end_matches('/').to_owned();
    for url in [
        format!("redis://default:wrong@127.0.0.1:{port}"),
        format!("redis://:secret@127.0.0.1:{port}/9999"),
        format!("redis://127.0.0.1:{}", closed_port()),
    ] {
        let pooled = pool_error(&url).await;
        assert_plain(&pooled);
        let limiter = Limiter::builder().url(&url).deadline(Duration::from_secs(10)).build().unwrap();
        let direct = limiter.ready().await.unwrap_err();
        assert_plain(&direct);
        let cause = |error: &Error| error.to_string().split_once(": ").unwrap().1.to_owned();
        assert_eq!(cause(&pooled), cause(&direct));
    }
}
