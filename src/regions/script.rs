//! The scripts of the mode gossip, and their calls: keys, arguments and replies.
//!
//! Not covered by semantic versioning: a minor version may change this module.
//!
//! Each script does what a method of the [`Region`](super::reference::Region) does. Tests compare the two at every step of
//! random sequences. A gate that is not replicated runs the scripts of [`script`](crate::script), whose texts know nothing of
//! regions.

mod reply;
pub(in crate::regions) mod text;

pub use self::reply::{Applied, applied, taken};
pub use self::text::{Peer, cursor_of, cursor_text, position_of, position_text};
use std::sync::LazyLock;

use super::reference::gossip::Gossip;
use super::reference::{Batch, Mode};
pub use super::reference::{TakeGroup, TakeItem};
use crate::quota::Quota;
use crate::quota::algorithm::{Definition, Kind};
use crate::script::{Script, allow_oom, lua, with_bound, with_prelude};

/// Composes a script that knows the five algorithms of rates: its first files, and its last ones.
macro_rules! of_regions {
    ([$($first:expr),+], $($file:literal),+) => {
        concat!(
            $($first,)+
            lua!("quota/hash_state"),
            lua!("quota/token_bucket"),
            lua!("quota/leaky_bucket"),
            lua!("quota/sliding_log"),
            lua!("regions/outbox"),
            lua!("regions/windows"),
            "algorithms = { token_bucket = token_bucket, leaky_bucket = leaky_bucket, sliding_log = sliding_log, fixed_window = windows, sliding_counter = windows }\n",
            $(lua!(concat!("regions/", $file))),+
        )
    };
}

/// Decides groups of any gates, and sends what it charged to the other regions: `lua/regions/take.lua`.
pub static TAKE: Script =
    Script::bounded("regions:take", of_regions!([with_bound!(lua!("prelude"))], "share", "take"));

/// The take of windows, composed as those of the other algorithms are.
const TAKE_WINDOWS: &str = with_bound!(
    lua!("regions/fast_windows"),
    "local function slow_path(call, format, now, stamp)\n",
    lua!("prelude"),
    lua!("quota/hash_state"),
    lua!("regions/windows"),
    lua!("regions/slow_windows"),
    lua!("take/slow_path"),
    "end\n",
    lua!("take/take")
);

/// Decide keys of one gate while no peer is cut off, and send what they charged to the other regions: the takes, each as a
/// function, followed by `lua/regions/take_gate.lua`.
static TAKES: LazyLock<[Script; 4]> = LazyLock::new(|| {
    let script = |name: &'static str| {
        let plain = Definition::of_name(name.trim_start_matches("regions:take:"));
        let take = plain.map_or(TAKE_WINDOWS, |definition| definition.scripts.take.text);
        let take = take.strip_prefix(with_bound!("")).unwrap_or_default();
        let window = if plain.is_some() { "0" } else { "" };
        let before = format!("local name = '{window}'\nlocal function take(mode, counts)\n");
        let text = [with_bound!(""), &before, take, "end\n", lua!("regions/take_gate")].concat();
        Script::bounded(name, text.leak())
    };
    [
        "regions:take:token_bucket",
        "regions:take:leaky_bucket",
        "regions:take:sliding_log",
        "regions:take:windows",
    ]
    .map(script)
});

fn take_of(quota: &Quota) -> &'static Script {
    let [token_bucket, leaky_bucket, sliding_log, windows] = &*TAKES;
    match quota.kind() {
        Kind::TokenBucket(_) => token_bucket,
        Kind::LeakyBucket(_) => leaky_bucket,
        Kind::SlidingLog(_) => sliding_log,
        _ => windows,
    }
}

const WRITE_TEXT: &str = of_regions!([with_prelude!("")], "stream", "changes", "write");

/// Charges or blocks a key without a check: `lua/regions/write.lua`.
pub static WRITE: Script = Script::new("regions:write", WRITE_TEXT);

/// Gives back units, lifts a block or forgets a key, also while the memory of Redis is full: `lua/regions/write.lua`.
pub static GIVE_BACK: Script = Script::new(
    "regions:give_back",
    concat!(allow_oom!(), of_regions!([with_prelude!("")], "stream", "changes", "write")),
);

/// Moves changes of the outbox into the stream: `lua/regions/flush.lua`.
pub static FLUSH: Script = Script::new(
    "regions:flush",
    with_prelude!(lua!("regions/outbox"), lua!("regions/stream"), lua!("regions/flush")),
);

/// Applies changes of a peer exactly once: `lua/regions/apply.lua`.
pub static APPLY: Script = Script::new("regions:apply", of_regions!([with_prelude!("")], "changes", "apply"));

/// Returns all scripts of regions.
#[must_use]
pub fn all() -> [&'static Script; 9] {
    let [token_bucket, leaky_bucket, sliding_log, windows] = &*TAKES;
    [&TAKE, token_bucket, leaky_bucket, sliding_log, windows, &WRITE, &GIVE_BACK, &FLUSH, &APPLY]
}

/// A call of a script.
#[derive(Clone, Debug)]
pub struct Call {
    /// The script.
    pub script: &'static Script,
    /// Its KEYS.
    pub keys: Vec<String>,
    /// Its ARGV.
    pub args: Vec<String>,
}

/// The keys of a region's replication, all of one slot.
#[derive(Clone, Debug)]
pub struct Keys {
    /// A hash: the changes that wait for the next flush.
    pub outbox: String,
    /// A hash: units that do not count as they should, by `forgiven`, `dropped` and `far`.
    pub counts: String,
    /// The stream that peers read.
    pub stream: String,
    /// A string: the epoch of the stream.
    pub epoch: String,
    /// A hash: up to which local time this region knows all of a peer.
    pub heard: String,
    /// A hash: how far each peer has applied the stream, and what it has
    /// [in common](super::replicator::ReplicatorSettings) with this region. The peers write it.
    pub acks: String,
    prefix: String,
}

/// The quotas of a call. The arguments name them by their numbers, from 1.
#[derive(Debug, Default)]
struct Quotas<'g>(Vec<&'g Gossip>);

impl<'g> Quotas<'g> {
    fn number(&mut self, gate: &'g Gossip) -> String {
        let known = self.0.iter().position(|other| *other == gate).unwrap_or_else(|| {
            self.0.push(gate);
            self.0.len() - 1
        });
        (known + 1).to_string()
    }

    fn args(self) -> impl Iterator<Item = String> {
        std::iter::once(self.0.len().to_string()).chain(self.0.into_iter().flat_map(text::quota))
    }
}

/// Returns the gate of groups of one key each, if they have one gate and the call has no cut. Such groups have a script of
/// their own: it is cheaper.
fn common_gate<'g>(groups: &[TakeGroup<'g>], is_cut: bool) -> Option<&'g Gossip> {
    let gate = groups.first()?.items.first()?.gate;
    let is_alike = |group: &TakeGroup<'_>| matches!(&*group.items, [item] if item.gate == gate);
    (!is_cut && groups.iter().all(is_alike)).then_some(gate)
}

/// Returns the argument of a number that may be absent.
fn optional(number: Option<u64>) -> String {
    number.map_or_else(String::new, |number| number.to_string())
}

/// A change of a key without a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Charges units, also above the limit.
    Penalize(u64),
    /// Gives back units that were charged at a stamp, in µs since 1970.
    Refund(u64, Option<u64>),
    /// Denies every check for a duration, in µs; 0 lifts the block.
    Block(u64),
    /// Forgets the key.
    Reset,
}

impl Keys {
    /// Makes the keys below a prefix, which holds the hash tag, such as `tidegate:1:{cr}:regions`.
    #[must_use]
    pub fn new(prefix: &str) -> Self {
        let key = |name: &str| format!("{prefix}:{name}");
        Self {
            outbox: key("outbox"),
            counts: key("counts"),
            stream: key("log"),
            epoch: key("epoch"),
            heard: key("heard"),
            acks: key("acks"),
            prefix: prefix.to_owned(),
        }
    }

    /// Returns the key of the cursor in the stream of a peer.
    #[must_use]
    pub fn cursor(&self, peer: &str) -> String {
        format!("{}:from:{peer}", self.prefix)
    }

    fn with<K: Into<String>>(&self, keys: impl IntoIterator<Item = K>) -> Vec<String> {
        let first = [self.outbox.clone(), self.counts.clone()];
        first.into_iter().chain(keys.into_iter().map(Into::into)).collect()
    }

    /// Decides groups, each of which observes the charges of those before it. `cut_us` is the local time at which a peer
    /// was cut off, if one is and the gates have the share policy: see
    /// [`Region::take_all`](super::reference::Region::take_all). [`taken`] reads the reply. The
    /// script [is bounded](Script::is_bounded): one more argument follows these.
    #[must_use]
    pub fn take(&self, groups: &[TakeGroup<'_>], cut_us: Option<u64>) -> Call {
        if let Some(gate) = common_gate(groups, cut_us.is_some()) {
            return self.take_gate(gate, groups);
        }
        let (mut quotas, mut keys, mut checks) = (Quotas::default(), Vec::new(), Vec::new());
        for TakeGroup { n, items } in groups {
            keys.extend(items.iter().map(|item| item.key));
            if cut_us.is_some() {
                keys.extend(items.iter().map(|item| item.share));
            }
            checks.extend([n.to_string(), items.len().to_string()]);
            for item in items {
                checks.extend([quotas.number(item.gate), item.cost.to_string(), optional(item.max_delay)]);
            }
        }
        let regions = quotas.0.iter().map(|gate| gate.regions).max();
        let args = [optional(cut_us), optional(regions)].into_iter();
        let args = args.chain(quotas.args()).chain(checks).collect();
        Call { script: &TAKE, keys: self.with(keys), args }
    }

    fn take_gate(&self, gate: &Gossip, groups: &[TakeGroup<'_>]) -> Call {
        let checks = |group: &TakeGroup<'_>| {
            let item = group.items[0];
            [group.n.to_string(), item.cost.to_string(), optional(item.max_delay)]
        };
        let mut checks: Vec<[String; 3]> = groups.iter().map(checks).collect();
        if checks.windows(2).all(|pair| pair[0] == pair[1]) {
            checks.truncate(1);
            checks.retain(|checks| *checks != ["1", "1", ""]);
        }
        let quota = text::quota(gate);
        let numbers = gate.quota.kind().fields().to_string();
        let args = quota[1..5].iter().cloned().chain(checks.into_iter().flatten());
        let args = args.chain([numbers, quota.join(",")]).collect();
        let states = groups.iter().map(|group| group.items[0].key);
        let keys = states.chain([&*self.outbox, &*self.counts]).map(str::to_owned).collect();
        Call { script: take_of(&gate.quota), keys, args }
    }

    /// Changes a key. `epoch` is a random number, for a stream that has none.
    #[must_use]
    pub fn write(&self, gate: &Gossip, key: &str, write: Write, epoch: u64) -> Call {
        let (script, change) = match write {
            Write::Penalize(units) => (&WRITE, vec!["penalize".to_owned(), units.to_string()]),
            Write::Refund(units, stamp) => {
                (&GIVE_BACK, vec!["refund".to_owned(), units.to_string(), optional(stamp)])
            }
            Write::Block(us) => {
                (if us > 0 { &WRITE } else { &GIVE_BACK }, vec!["block".to_owned(), us.to_string()])
            }
            Write::Reset => (&GIVE_BACK, vec!["reset".to_owned()]),
        };
        let args = text::quota(gate).into_iter().chain(change).chain([text::epoch(epoch)]).collect();
        Call { script, keys: self.with([&*self.stream, &*self.epoch, key]), args }
    }

    /// Moves at most `most` changes into one entry of the stream. Trims entries older than `retention_us`, and more
    /// than `max_entries`.
    #[must_use]
    pub fn flush(&self, most: usize, retention_us: u64, max_entries: usize, epoch: u64) -> Call {
        let numbers = [most.to_string(), retention_us.to_string(), max_entries.to_string()];
        let args = numbers.into_iter().chain([text::epoch(epoch)]).collect();
        Call { script: &FLUSH, keys: self.with([&*self.stream, &*self.epoch]), args }
    }

    /// Applies entries of a peer exactly once, unless their read is older than `fresh_us`. [`applied`] reads the reply.
    #[must_use]
    pub fn apply(&self, peer: &str, batch: &Batch, fresh_us: u64) -> Call {
        let mut quotas = Quotas::default();
        let (mut keys, mut items) = (vec![self.cursor(peer), self.heard.clone()], Vec::new());
        for entry in &batch.entries {
            for (field, amount) in &entry.changes {
                let Mode::Gossip(gate) = &field.mode else { continue };
                let Some(verb) = text::verb(field.verb).filter(|_| batch.next.applies(entry.id, field))
                else {
                    continue;
                };
                keys.push(field.key.clone());
                items.extend([
                    verb.to_owned(),
                    quotas.number(gate),
                    field.name.to_string(),
                    amount.to_string(),
                ]);
            }
        }
        let args = [
            batch.expected.as_ref().map_or_else(String::new, cursor_text),
            cursor_text(&batch.next),
            peer.to_owned(),
            batch.read_us.to_string(),
            fresh_us.to_string(),
            u8::from(batch.is_complete).to_string(),
        ];
        let args = args.into_iter().chain(quotas.args()).chain(items).collect();
        Call { script: &APPLY, keys: self.with(keys), args }
    }
}
