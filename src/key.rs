//! The Redis keys of states: `namespace:layout:gate:algorithm[/window]:key`, such as
//! `tidegate:2:login:token_bucket:user:42`. The window part of a fixed window by the clock ends with
//! `@clock`, or `@clock+` and its offset. That of a calendar window is its calendar, such as `month@Europe/Berlin`.
//!
//! Different (gate, key) pairs never collide: namespaces and gate names contain no colon, the key comes last,
//! and its encoding is reversible. Keys cannot inject a pattern or a hash tag.
//!
//! In a Redis Cluster a hash tag precedes the key, such as `tidegate:2:login:token_bucket:{cr}:user:42`: see
//! [`hash_tag`].

pub(crate) mod as_key;
mod hash_tag;
pub(crate) mod keyed_hash;
pub(crate) mod reservation_secret;

use std::fmt::Write;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

pub(crate) use self::hash_tag::{HASH_TAGS, HashTag};
use crate::error::Error;
use crate::quota::Quota;

/// The format version of a key's state. Every change of the format increments it, so that two versions of
/// tidegate never read each other's state during a rollout.
pub(crate) const LAYOUT: u32 = 2;

/// The format version of keys for a whole namespace: the instances and the operators' overrides. It is
/// separate, since versions with different states still count each other and follow the same overrides.
pub(crate) const SHARED_LAYOUT: u32 = 1;

/// The maximum length of an encoded key; longer keys are stored as their hash.
const LONGEST: usize = 200;

/// Precedes the algorithm in the key of a state's open holds, such as
/// `tidegate:2:tokens:holds/token_bucket:user:42`.
pub(crate) const HOLDS: &str = "holds/";

/// Precedes the algorithm in the key of the count of a key's denials, such as
/// `tidegate:2:login:denials/token_bucket:user:42`.
pub(crate) const DENIALS: &str = "denials/";

/// Precedes the algorithm in the key of an adaptive limit, such as
/// `tidegate:2:payments:adaptive/in_flight:provider`.
pub(crate) const ADAPTIVE: &str = "adaptive/";

/// Precedes the gate in the key of a replicated state, such as `tidegate:2:gossip/login:token_bucket:user:42`. Peers can
/// name only keys that begin so.
#[cfg(any(feature = "admin", feature = "regions"))]
pub(crate) const GOSSIP: &str = "gossip/";

/// Replaces [`GOSSIP`] in the key of the share of a replicated state.
#[cfg(any(feature = "admin", feature = "regions"))]
pub(crate) const SHARE: &str = "share/";

/// The part of the keys of replication that follows the layout, such as `tidegate:1:regions:outbox`.
#[cfg(any(feature = "admin", feature = "regions"))]
pub(crate) const REGIONS: &str = "regions";

/// Precedes the start of a bucket in the key of its figures, such as `tidegate:1:figures/1763683200`.
pub(crate) const FIGURES: &str = "figures/";

/// Precedes the start of a time in the key of its instances' records, such as `tidegate:1:instances/1763683200`.
pub(crate) const INSTANCE_RECORDS: &str = "instances/";

/// Precedes the number of a process in the key of the releases that wait for it, such as `tidegate:1:releases/a1b2c3d4`.
#[cfg(feature = "admin")]
pub(crate) const RELEASES: &str = "releases/";

/// How keys are written in Redis.
///
/// Default: [`KeyMode::Clear`].
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum KeyMode {
    /// Readable: bytes that are not printable ASCII, and the characters space, `%`, `{` and `}`, become `%`
    /// and two hex digits. A key of more than 200 bytes after this encoding becomes `%sha256=` and its
    /// SHA-256 in 64 hex digits.
    #[default]
    Clear,
    /// `%hmac=` and the first 128 bits of the HMAC-SHA-256 under this secret, in 32 hex digits: for keys that
    /// are personal data. Every instance needs the same secret. Another secret changes all keys, so all
    /// limits start unused.
    Hmac(Vec<u8>),
}

impl std::fmt::Debug for KeyMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Clear => "Clear",
            Self::Hmac(_) => "Hmac(…)",
        })
    }
}

impl KeyMode {
    /// Appends `key` as written in Redis. No encoded key begins with `%h` or `%s`, since its `%` is followed
    /// by two uppercase hex digits.
    #[inline]
    fn append(&self, key: &[u8], out: &mut String) {
        match self {
            Self::Clear => match as_it_is(key) {
                Some(text) => out.push_str(text),
                None => append_escaped(key, out),
            },
            Self::Hmac(secret) => {
                out.push_str("%hmac=");
                append_digest(&hmac(secret, key)[..16], out);
            }
        }
    }

    fn encoded(&self, key: &[u8]) -> String {
        let mut out = String::with_capacity(key.len());
        self.append(key, &mut out);
        out
    }

    /// Returns the hash tag of a key. With an HMAC, computing it needs the secret too.
    fn hash_tag(&self, key: &[u8]) -> HashTag {
        HashTag::of(match self {
            Self::Clear => hash_tag::hash(key),
            // Uses other bytes of the HMAC than those in the Redis key.
            Self::Hmac(secret) => hash_tag::hash(&hmac(secret, key)[16..]),
        })
    }
}

#[cold]
fn append_escaped(key: &[u8], out: &mut String) {
    let start = out.len();
    for part in key.chunk_by(|a, b| is_plain(*a) && is_plain(*b)) {
        match std::str::from_utf8(part) {
            Ok(text) if is_plain(part[0]) => out.push_str(text),
            _ => write_hex(part[0], out),
        }
        if out.len() - start > LONGEST {
            out.truncate(start);
            out.push_str("%sha256=");
            append_digest(&Sha256::digest(key), out);
            return;
        }
    }
}

fn hmac(secret: &[u8], key: &[u8]) -> [u8; 32] {
    #[expect(clippy::expect_used, reason = "HMAC takes a key of any length")]
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("any length");
    mac.update(key);
    mac.finalize().into_bytes().into()
}

/// Returns the key as text if it needs no encoding, as most keys do.
fn as_it_is(key: &[u8]) -> Option<&str> {
    let is_short_and_plain = key.len() <= LONGEST && key.iter().all(|byte| is_plain(*byte));
    is_short_and_plain.then(|| std::str::from_utf8(key).ok()).flatten()
}

/// Returns whether a byte needs no encoding.
fn is_plain(byte: u8) -> bool {
    // A table, because each check tests all bytes of its key.
    static PLAIN: [bool; 256] = {
        let mut plain = [false; 256];
        let mut byte = 0x21;
        while byte <= 0x7e {
            plain[byte as usize] = !matches!(byte, b'%' | b'{' | b'}');
            byte += 1;
        }
        plain
    };
    PLAIN[usize::from(byte)]
}

fn write_hex(byte: u8, out: &mut String) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    out.push('%');
    out.push(HEX[usize::from(byte >> 4)] as char);
    out.push(HEX[usize::from(byte & 15)] as char);
}

fn append_digest(bytes: &[u8], out: &mut String) {
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(out, "{byte:02x}");
    }
}

/// The common part of all Redis keys of one limiter.
#[derive(Clone, Debug)]
pub(crate) struct Keyspace {
    namespace: String,
    mode: KeyMode,
    is_spread: bool,
}

impl Keyspace {
    pub(crate) fn new(namespace: &str, mode: KeyMode) -> Result<Self, Error> {
        if !is_name(namespace, |byte| byte.is_ascii_alphanumeric()) {
            return Err(Error::config(format!(
                "namespace {namespace:?}: use 1 to 64 letters, digits, `_`, `.` or `-`"
            )));
        }
        if matches!(&mode, KeyMode::Hmac(secret) if secret.len() < 16) {
            return Err(Error::config(
                "the secret of KeyMode::Hmac is shorter than 16 bytes: use 32 random ones",
            ));
        }
        Ok(Self { namespace: namespace.to_owned(), mode, is_spread: false })
    }

    /// Sets whether each key has a hash tag.
    pub(crate) fn spread_over_a_cluster(self, is_spread: bool) -> Self {
        Self { is_spread, ..self }
    }

    /// Returns the key in which the processes of this namespace are counted.
    pub(crate) fn instances(&self) -> String {
        self.of_all_gates("instances")
    }

    /// Returns the hash tags that keys can have; without a cluster, only the default one, which is not
    /// written.
    pub(crate) fn hash_tags(&self) -> impl Iterator<Item = HashTag> {
        HashTag::all().take(if self.is_spread { HASH_TAGS } else { 1 })
    }

    /// Returns the key of this namespace's overrides.
    pub(crate) fn overrides(&self) -> String {
        self.of_all_gates("overrides")
    }

    /// Returns the key of the fleet's [figures](crate::observe::figures) of the bucket that begins at this second of
    /// the server's clock.
    pub(crate) fn figures(&self, start_s: u64) -> String {
        self.of_all_gates(&format!("{FIGURES}{start_s}"))
    }

    /// Returns the key of the instances' records of the time that begins at this second of the server's clock.
    pub(crate) fn instance_records(&self, start_s: u64) -> String {
        self.of_all_gates(&format!("{INSTANCE_RECORDS}{start_s}"))
    }

    /// Returns the key of this namespace's audit log.
    #[cfg(feature = "admin")]
    pub(crate) fn audit(&self) -> String {
        self.of_all_gates("audit")
    }

    /// Returns the key of the releases that wait for a process.
    #[cfg(feature = "admin")]
    pub(crate) fn releases(&self, process: u32) -> String {
        self.of_all_gates(&format!("{RELEASES}{process:08x}"))
    }

    /// Returns the key of the leases of the holders of in-flight limits: one for each hash tag, since the
    /// scripts read it together with the keys that are held.
    pub(crate) fn holders(&self, hash_tag: HashTag) -> String {
        holders(&self.namespace, self.is_spread, hash_tag)
    }

    fn of_all_gates(&self, name: &str) -> String {
        shared_key(&self.namespace, self.is_spread, HashTag::default(), name)
    }

    #[cfg(feature = "admin")]
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns a key that is never written, with this hash tag: a call for it finds the node of the tag.
    #[cfg(feature = "admin")]
    pub(crate) fn probe_key(&self, hash_tag: HashTag) -> String {
        format!("{}:{LAYOUT}:{{{}}}", self.namespace, hash_tag.tag())
    }

    /// Returns a key as written in Redis.
    pub(crate) fn encoded(&self, key: &[u8]) -> String {
        self.mode.encoded(key)
    }

    pub(crate) fn check_gate_name(gate: &str) -> Result<(), Error> {
        match is_name(gate, |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()) {
            true => Ok(()),
            false => Err(Error::config(format!(
                "gate name {gate:?}: use 1 to 64 lower-case letters, digits, `_`, `.` or `-`"
            ))),
        }
    }

    /// Returns the forms that a key can have in Redis: states from before a secret was set are in the clear.
    #[cfg(feature = "admin")]
    pub(crate) fn stored_forms(&self, key: &[u8]) -> Vec<String> {
        let clear = KeyMode::Clear.encoded(key);
        match &self.mode {
            KeyMode::Clear => vec![clear],
            KeyMode::Hmac(_) => vec![self.encoded(key), clear],
        }
    }

    /// Returns the start of all keys of replicated states.
    #[cfg(feature = "regions")]
    pub(crate) fn replicated_states(&self) -> String {
        format!("{}:{LAYOUT}:{GOSSIP}", self.namespace)
    }

    /// Returns the start of the keys of replication.
    #[cfg(feature = "regions")]
    pub(crate) fn regions(&self) -> String {
        self.of_all_gates(REGIONS)
    }

    /// Returns the prefix of all Redis keys of one gate.
    pub(crate) fn prefix(&self, gate: &str, quota: &Quota) -> Result<Prefix, Error> {
        self.prefix_after("", gate, quota)
    }

    /// Returns the prefix of all Redis keys of one replicated gate.
    #[cfg(feature = "regions")]
    pub(crate) fn replicated_prefix(&self, gate: &str, quota: &Quota) -> Result<Prefix, Error> {
        Ok(Prefix { is_replicated: true, ..self.prefix_after(GOSSIP, gate, quota)? })
    }

    fn prefix_after(&self, mode: &str, gate: &str, quota: &Quota) -> Result<Prefix, Error> {
        Self::check_gate_name(gate)?;
        let mut text = format!("{}:{LAYOUT}:{mode}{gate}:", self.namespace);
        let shape_at = text.len();
        text.push_str(quota.algorithm());
        if let Some(window) = quota.kind().algorithm().window() {
            let _ = write!(text, "/{window}");
        }
        text.push(':');
        let namespace = self.namespace.clone();
        Ok(Prefix {
            text,
            shape_at,
            namespace,
            mode: self.mode.clone(),
            is_spread: self.is_spread,
            #[cfg(feature = "regions")]
            is_replicated: false,
        })
    }
}

/// See [`Keyspace::prefix`].
#[derive(Clone, Debug)]
pub(crate) struct Prefix {
    text: String,
    namespace: String,
    /// Where the algorithm begins in `text`.
    shape_at: usize,
    mode: KeyMode,
    is_spread: bool,
    /// Whether all keys have the default hash tag, which is that of the keys of replication.
    #[cfg(feature = "regions")]
    is_replicated: bool,
}

impl Prefix {
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn hash_tag(&self, key: &[u8]) -> HashTag {
        #[cfg(feature = "regions")]
        if self.is_replicated {
            return HashTag::default();
        }
        if self.is_spread { self.mode.hash_tag(key) } else { HashTag::default() }
    }

    /// Returns the key as written in Redis.
    pub(crate) fn encoded(&self, key: &[u8]) -> String {
        self.mode.encoded(key)
    }

    pub(crate) fn is_under_its_own_hash_tag(&self, key: &[u8], colocate_with: Option<&[u8]>) -> bool {
        !colocate_with.is_some_and(|owner| self.hash_tag(owner) != self.hash_tag(key))
    }

    /// See [`Keyspace::holders`].
    pub(crate) fn holders(&self, hash_tag: HashTag) -> String {
        holders(&self.namespace, self.is_spread, hash_tag)
    }

    #[inline]
    pub(crate) fn key(&self, key: &[u8], hash_tag: HashTag) -> String {
        let mut out = self.start(key.len(), hash_tag);
        self.mode.append(key, &mut out);
        out
    }

    /// Returns the Redis key of a key that is [`encoded`](Self::encoded) already.
    pub(crate) fn key_of_encoded(&self, encoded: &str, hash_tag: HashTag) -> String {
        let mut out = self.start(encoded.len(), hash_tag);
        out.push_str(encoded);
        out
    }

    #[inline]
    fn start(&self, key_len: usize, hash_tag: HashTag) -> String {
        let mut out = String::with_capacity(self.text.len() + key_len + 5);
        out.push_str(&self.text);
        if self.is_spread {
            let _ = write!(out, "{{{}}}:", hash_tag.tag());
        }
        out
    }

    /// Returns the key of the holds of a state with this prefix: `holds/` precedes the algorithm.
    pub(crate) fn holds_key(&self, redis_key: &str) -> String {
        self.key_beside(redis_key, HOLDS)
    }

    /// Returns the key of the count of denials of a state with this prefix: `denials/` precedes the algorithm.
    pub(crate) fn denials_key(&self, redis_key: &str) -> String {
        self.key_beside(redis_key, DENIALS)
    }

    /// Returns the key of the adaptive limit of a key with this prefix: `adaptive/` precedes the algorithm.
    pub(crate) fn adaptive_key(&self, redis_key: &str) -> String {
        self.key_beside(redis_key, ADAPTIVE)
    }

    /// Returns the key of the share of a replicated state with this prefix.
    #[cfg(feature = "regions")]
    pub(crate) fn share_key(&self, redis_key: &str) -> String {
        redis_key.replacen(GOSSIP, SHARE, 1)
    }

    fn key_beside(&self, redis_key: &str, part: &str) -> String {
        let (before, shape) = redis_key.split_at(self.shape_at);
        format!("{before}{part}{shape}")
    }
}

/// Returns whether a text can be a key as written in Redis, in any [`KeyMode`].
pub(crate) fn is_encoded(text: &str) -> bool {
    text.len() <= LONGEST && text.bytes().all(|byte| is_plain(byte) || byte == b'%')
}

/// Returns a key for all gates. It has fewer parts than the key of any gate.
fn shared_key(namespace: &str, is_spread: bool, hash_tag: HashTag, name: &str) -> String {
    match is_spread {
        false => format!("{namespace}:{SHARED_LAYOUT}:{name}"),
        true => format!("{namespace}:{SHARED_LAYOUT}:{{{}}}:{name}", hash_tag.tag()),
    }
}

fn holders(namespace: &str, is_spread: bool, hash_tag: HashTag) -> String {
    shared_key(namespace, is_spread, hash_tag, "holders")
}

fn is_name(name: &str, is_letter: impl Fn(u8) -> bool) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|byte| is_letter(byte) || matches!(byte, b'_' | b'.' | b'-'))
}
