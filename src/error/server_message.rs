//! Explains the errors of the server.

/// How to get sufficient permissions.
const PERMISSIONS: &str = "run the `ACL SETUSER` line of \"A Redis user for it\" in tidegate's documentation (docs/operate/redis-user.md)";

/// Returns the server's message with a uniform error code: the wording of permission errors differs between
/// versions.
fn normalized(message: &str) -> String {
    let has_code = message.starts_with("NOPERM");
    let old_wordings = ["ACL failure in script", "The user executing the script can't"];
    if has_code || !old_wordings.iter().any(|wording| message.contains(wording)) {
        return message.to_owned();
    }
    format!("NOPERM {}", message.strip_prefix("ERR ").unwrap_or(message))
}

/// Returns the [normalized] message of the server, followed by advice if the cause is known.
pub(super) fn explained(message: &str) -> String {
    let message = normalized(message);
    match advice(&message) {
        Some(advice) => format!("{message} ({advice})"),
        None => message,
    }
}

/// Returns whether the server rejects this user: its credentials, or a command that it may not run.
pub(super) fn is_of_permissions(message: &str) -> bool {
    ["NOPERM", "NOAUTH", "WRONGPASS"].iter().any(|code| message.starts_with(code))
}

/// Expects a [normalized] message.
fn advice(message: &str) -> Option<String> {
    Some(match message.split(' ').next()? {
        "NOPERM" => match missing_permission(message) {
            Some(permission) => format!("the Redis user lacks the permission `+{permission}`: {PERMISSIONS}"),
            // The versions word access to keys differently.
            None if message.contains(" key") => format!(
                "the Redis user has no access to the keys of this limiter: grant `~NAMESPACE:*`, and {PERMISSIONS}"
            ),
            None => format!("the Redis user lacks a permission, see `ACL LOG`: {PERMISSIONS}"),
        },
        "NOAUTH" | "WRONGPASS" => "correct the credentials in the URL, or those given separately".to_owned(),
        "OOM" => "the memory of Redis is full, and charges need memory: raise `maxmemory`, or find the keys \
                  that fill it; keep `noeviction`, since an evicted key starts at its full limit again"
            .to_owned(),
        _ => return None,
    })
}

/// Returns the text between `run the '` and `' command`.
fn missing_permission(message: &str) -> Option<&str> {
    let (_, rest) = message.split_once("permissions to run the '")?;
    rest.split_once('\'').map(|(permission, _)| permission)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_permission_gets_the_same_advice_in_the_wording_of_every_version() {
        let permissions = ["hset", "hset", "evalsha", "evalsha", "client|list"];
        for (message, permission) in [
            "NOPERM ACL failure in script: User limits has no permissions to run the 'hset' command",
            "NOPERM ACL failure in script: User limits has no permissions to run the 'hset' command script: 1f, on @user_script:7.",
            "NOPERM this user has no permissions to run the 'evalsha' command",
            "NOPERM User limits has no permissions to run the 'evalsha' command",
            "NOPERM User limits has no permissions to run the 'client|list' command",
        ]
        .into_iter()
        .zip(permissions)
        {
            let advice = advice(&normalized(message)).unwrap();
            assert!(advice.contains(&format!("`+{permission}`")) && advice.contains("redis-user.md"), "{advice}");
        }
        // Redis 7.0 does not name the permission.
        let message = normalized("ERR The user executing the script can't run this command or subcommand");
        assert!(message.starts_with("NOPERM The user"), "{message}");
        assert!(advice(&message).unwrap().contains("ACL LOG"));
        for message in [
            "NOPERM this user has no permissions to access one of the keys used as arguments",
            "NOPERM No permissions to access a key",
            "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments",
        ] {
            assert!(advice(&normalized(message)).unwrap().contains("~NAMESPACE:*"), "{message}");
        }
        for message in ["ERR unknown command", "", "CLUSTERDOWN The cluster is down"] {
            assert_eq!((normalized(message), advice(message)), (message.to_owned(), None));
        }
    }
}
