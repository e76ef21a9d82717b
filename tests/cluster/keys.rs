//! Slots and hash tags of keys.

use std::collections::HashSet;

use tidegate::{KeyMode, Quota, Rate};
use tidegate_testkit::Server;

use super::{MINUTE, builder, on_owner};
use crate::support::fixture::namespace;

fn hash_tag(redis_key: &str) -> &str {
    redis_key.split_once('{').unwrap().1.split_once('}').unwrap().0
}

#[tokio::test]
async fn gates_of_one_key_share_a_slot_and_hostile_keys_cannot_choose_it() {
    let cluster = tidegate_testkit::shared_cluster();
    let hostile: [&[u8]; 8] =
        [b"", b"{", b"{cr}", b"}{cr}", b":{cr}:", b"a\r\nb \x00\xff", &[b'{'; 300], b"%7Bcr%7D"];
    for mode in [KeyMode::Clear, KeyMode::Hmac(vec![7; 32])] {
        let limiter = builder(&cluster).key_mode(mode).build().unwrap();
        let gates = [
            limiter.gate("token", Quota::token_bucket(1, Rate::per_hour(1))),
            limiter.gate("log", Quota::sliding_log(1, 60 * MINUTE)),
        ];
        for key in hostile {
            let keys = gates.clone().map(|gate| gate.redis_key(key).unwrap());
            assert_eq!(hash_tag(&keys[0]), hash_tag(&keys[1]));
            for (gate, redis_key) in gates.iter().zip(keys) {
                assert_eq!(redis_key.matches(['{', '}']).count(), 2, "{redis_key}");
                assert!(gate.check(key).await.unwrap().is_allowed(), "{redis_key}");
                assert!(!gate.check(key).await.unwrap().is_allowed(), "{redis_key}");
                assert_eq!(on_owner(&cluster, &["EXISTS", &redis_key]), "(integer) 1", "{redis_key}");
            }
        }
    }
}

#[tokio::test]
async fn many_keys_are_spread_over_all_primaries() {
    let (cluster, namespace) = (tidegate_testkit::shared_cluster(), namespace());
    let limiter = builder(&cluster).namespace(&namespace).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(1, MINUTE));
    let keys: Vec<String> = (0..1_000).map(|key| format!("user:{key}")).collect();
    for is_allowed in [true, false] {
        let decisions = gate.check_many(&keys).await;
        assert!(decisions.into_iter().all(|decision| decision.unwrap().is_allowed() == is_allowed));
    }
    let hash_tags: HashSet<String> =
        keys.iter().map(|key| hash_tag(&gate.redis_key(key).unwrap()).to_owned()).collect();
    assert_eq!(hash_tags.len(), 48);
    let pattern = format!("{namespace}:*");
    let keys_of = |node: &Server| node.cli(&["--scan", "--pattern", &pattern]).unwrap().lines().count();
    let sizes: Vec<usize> = cluster.nodes().take(3).map(keys_of).collect();
    assert!(sizes.iter().all(|size| (250..=420).contains(size)), "{sizes:?}");
}

#[test]
fn invalid_cluster_urls_are_errors_without_the_password() {
    let built = |urls: &[&str]| tidegate::Limiter::builder().cluster(urls).build().unwrap_err();
    for urls in [&[][..], &["nonsense"], &["redis://:secret@a:1", "redis://:other@b:1"]] {
        let error = built(urls);
        assert!(error.is_config(), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
