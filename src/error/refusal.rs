//! What to do about what Redis refuses.

/// Where the rights stand that suffice.
const RIGHTS: &str = "give it those of the `ACL SETUSER` line in tidegate's README, \"A Redis user for it\"";

/// What the server said, under one name for what each version says in other words.
fn named(said: &str) -> String {
    let is_named = said.starts_with("NOPERM");
    let is_meant = ["ACL failure in script", "The user executing the script can't"];
    if is_named || !is_meant.iter().any(|sign| said.contains(sign)) {
        return said.to_owned();
    }
    format!("NOPERM {}", said.strip_prefix("ERR ").unwrap_or(said))
}

/// What it says, [named], with what to do where that is known.
pub(super) fn explained(said: &str) -> String {
    let said = named(said);
    match advice(&said) {
        Some(advice) => format!("{said} ({advice})"),
        None => said,
    }
}

/// By what is [named].
fn advice(said: &str) -> Option<String> {
    let about_the_login = "correct the credentials in the URL or beside it";
    Some(match said.split(' ').next()? {
        "NOPERM" => match missing_right(said) {
            Some(right) => format!("its user lacks the right `+{right}`: {RIGHTS}"),
            // Of several words for keys.
            None if said.contains(" key") => format!(
                "its user may not use this limiter's keys: let it have `~NAMESPACE:*`, and else {RIGHTS}"
            ),
            None => format!("its user lacks a right, which `ACL LOG` tells: {RIGHTS}"),
        },
        "NOAUTH" | "WRONGPASS" => about_the_login.to_owned(),
        "OOM" => "its memory is full, and charges need some: raise `maxmemory`, or find who fills it; \
                  `noeviction` is right, since what is evicted counts as untouched"
            .to_owned(),
        _ => return None,
    })
}

/// Between `run the '` and `' command`.
fn missing_right(said: &str) -> Option<&str> {
    let (_, rest) = said.split_once("permissions to run the '")?;
    rest.split_once('\'').map(|(right, _)| right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_right_has_one_name_and_one_remedy_in_the_words_of_any_version() {
        let rights = ["hset", "hset", "evalsha", "evalsha", "client|list"];
        for (said, right) in [
            "NOPERM ACL failure in script: User limits has no permissions to run the 'hset' command",
            "NOPERM ACL failure in script: User limits has no permissions to run the 'hset' command script: 1f, on @user_script:7.",
            "NOPERM this user has no permissions to run the 'evalsha' command",
            "NOPERM User limits has no permissions to run the 'evalsha' command",
            "NOPERM User limits has no permissions to run the 'client|list' command",
        ]
        .into_iter()
        .zip(rights)
        {
            let advice = advice(&named(said)).unwrap();
            assert!(advice.contains(&format!("`+{right}`")) && advice.contains("README"), "{advice}");
        }
        // Redis 7.0 does not say which.
        let said = named("ERR The user executing the script can't run this command or subcommand");
        assert!(said.starts_with("NOPERM The user"), "{said}");
        assert!(advice(&said).unwrap().contains("ACL LOG"));
        for said in [
            "NOPERM this user has no permissions to access one of the keys used as arguments",
            "NOPERM No permissions to access a key",
            "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments",
        ] {
            assert!(advice(&named(said)).unwrap().contains("~NAMESPACE:*"), "{said}");
        }
        for said in ["ERR unknown command", "", "CLUSTERDOWN The cluster is down"] {
            assert_eq!((named(said), advice(said)), (said.to_owned(), None));
        }
    }
}
