//! One limit in several regions, each of which decides on its own Redis: see [`Gate::replicated`](crate::Gate::replicated) and
//! the [guide](crate::guide::regions).
//!
//! The modules are not covered by semantic versioning, a minor version may change them: the [reference](mod@reference) of the
//! semantics, as integer arithmetic, the [scripts](script) of gossip, which do the same on a Redis, and the [replicator], which
//! carries charges between regions. No gate has the mode escrow yet.
//!
//! No check waits for another region. In the background, regions exchange the charges they admitted. Until a charge has
//! arrived, the other regions decide without it. The mode of a gate says in which direction they then err:
//!
//! - **Gossip with debt** ([`gossip`](reference::gossip)) admits a check if the charges known here leave room. It can admit
//!   too much for a moment. Late charges count in full, also above the limit, so the surplus is repaid. It serves token
//!   buckets, leaky buckets, windows by the clock, sliding logs and sliding counters.
//! - **Escrow by grants** ([`escrow`](reference::escrow)) gives each of R regions 1/R of the limit. The regions then grant
//!   their parts to the region that spends. It never admits more than the limit, whatever messages are late or lost. It can
//!   reject too early. It serves token buckets, leaky buckets and windows by the clock.
//!
//! # Terms
//!
//! R is the number of regions, L the limit, r the rate of a level (token or leaky bucket), W the window. The **pooled state**
//! is that of one Redis that is charged with everything at the instant of its admission. **Over-admission** E is the pooled
//! usage just after an admission, minus L. **Unseen** units u are those that others charged and that the deciding region has
//! not applied. **Staleness** s is the longest time from a charge to its application in another region. A(s) is the most
//! that one region can add to the pooled state in s: L + r·s for a level; L for a window or log; of a counter
//! L + 1 + L·δ/W, where the clocks are apart by δ.
//!
//! # Replication
//!
//! 1. A take adds its units to a field of the **outbox** in the script that charges. Equal fields coalesce; different
//!    windows never do. Denials and peeks add nothing.
//! 2. A **flush** moves fields into one entry of the region's stream, in any order. A reset or the lifting of a block moves the
//!    pending fields of its key first, so that the order of one region is kept. Of windows these are the previous, the
//!    current and the next one: a script finds only fields that it knows. Older charges count nowhere.
//! 3. A region stores a **cursor** for each peer: an epoch and an ID. An application names the cursor that it expects, and
//!    changes nothing if another is stored. So charges are applied exactly once, by any number of replicators.
//! 4. With each read, a replicator writes its cursor back as an **acknowledgement**. The origin then settles its grants to
//!    that region.
//! 5. Applied charges never enter an outbox.
//! 6. The **epoch** is made with the stream. If it differs, or the stream ends below the cursor (a failover lost its end),
//!    reading goes on from the ID of the cursor, which never goes back. So nothing is applied twice. New entries of a server
//!    whose clock is behind that ID are skipped.
//! 7. A region **without a cursor** (new, or emptied) reads from the beginning, and applies only gossip charges of named
//!    windows. It skips all else up to the end of the stream at that time: a replayed grant would be granted twice.
//! 8. Clocks of regions are never compared. Windows are named by their start; all else counts from its arrival. A window
//!    whose region's clock is stepped back by up to W stays; after a larger step its counts move to the window of the clock.
//!
//! # Bounds of gossip
//!
//! | | E at most | denied although the pooled state has room |
//! | --- | --- | --- |
//! | each algorithm | u + forgiven (+ 1 for a counter), so (R - 1)·A(s) | level: only if less than r·s besides the cost is left; log: only if the charges of the last W + s leave no room; window, counter: never |
//! | share policy, while cut off | (R - 1)(L + r·d) + L, where d is the silence after which a peer is cut off, plus the time until a charge is flushed; 0 once the share has admitted all units that count. Plus forgiven and trimmed units | up to 1 - 1/R of the rate; checks above L/R |
//! | carry, n windows | n·L + 2(R - 1)·L admitted, while s plus the difference of the clocks is below W, and nothing is forgiven or dropped | until the debt is repaid |
//!
//! - **Debt.** Arriving charges raise the usage up to L + D. The rest is forgiven. D is R limits by default.
//! - **Carry.** Units above the limit of a fixed window reduce the limits of the windows that follow, by L each. A late charge
//!   of the previous window still counts; older ones are dropped, so a cut of two windows or more is mostly forgiven. D is
//!   2(R - 1) limits by default.
//! - **Share.** While a peer is cut off, checks must also pass a second state of the region's own units, counted R-fold. It
//!   begins with nothing available at the time of the cut, and goes on until no peer is cut off. Refunds do not return to
//!   it. A peer is **heard of** at the local time before a read that reached the end of its stream and was applied: a region
//!   that is not cut off knows all that its peers had sent by then, however long readers are paused. Of counters, E grows by 1.
//! - **Refunds** replicate as negative charges. Windows and counters stay exact. Of a level, a late refund can remove units
//!   that have drained meanwhile: E grows by at most z' - z, where z are the units that are given back and have not arrived,
//!   and z' the most that z has been since the pooled state was empty. Of a log, E grows by at most the units given back in the
//!   last 2·W + s. Other regions are stricter by less than one unit for each refund of a level.
//! - **Blocks** replicate as the time that is left; the later one wins, so a block ends late by at most s. A lifted block
//!   also lifts blocks that other regions make while it is on its way.
//! - **Resets** do not stop charges in flight. After one, E grows by at most the units that the region had counted since, and by
//!   refunds in flight at the reset or of units charged before it.
//! - **Lost state.** An emptied Redis, a failover that loses its end, and trimmed charges leave units unseen for good: at
//!   most one limit for each loss of a region's own state.
//! - **Clock steps.** A forward step by δ adds r·δ to E of a level, and up to L + D to that of a log, whose units leave
//!   early. While clocks are apart by more than a window, charges of a region that is ahead count in the next window here and not
//!   in their own: they count as forgiven there, and checks can be denied here although the pooled state has room.
//! - **Overrides** act per region: L and r are the largest in effect. A higher rate also drains the time since the key was
//!   last written. Each change between quotas with other ticks rounds a level by at most half a tick, in escrow too. An
//!   override may not change the length of a window, since names would not match.
//! - **Leases** are takes, and refunds of the rest. The units that processes spend, counted when they spend them, exceed the
//!   limit by no more than E and the units that leases of all regions hold at most, in both modes.
//!
//! # Bounds of escrow
//!
//! E is **0**. The regions may spend Φ = Σ (m - V)/M + Σ (grants in flight)/M, which is at most L minus the pooled usage;
//! with windows of equal weights, exactly that while nothing is lost. V counts own units M-fold. A take lowers Φ by its cost,
//! a grant moves it, a lost grant lowers it, and drains add at most r in total.
//!
//! - **Grants in flight** of a level must not drain at their grantor, so H holds them: until the addressee confirms them, or
//!   until they are 2 to 3 buckets of time G old. No reader applies them later: it reads them before they are 2 buckets
//!   old by the grantor's clock, and applies them within β by its own. Steps of the two clocks must be less than G - β in sum.
//! - **Denied too early**: from idle, all but 1/R of the limit, until grants arrive; cut off, all but r/R. `retry_after` is an
//!   upper bound.
//! - **A cost above L/M** would be denied forever, so it is over capacity.
//! - **Refunds** stay in the region that gives back, as credit. A level gives back at least 1/M at once; the rest drains.
//! - **Weights** other than R: the sum of 1/M over all regions is at most 1 at every instant.
//! - **A forward clock step** by δ drains that region's level: E grows by r·δ/M.
//! - **Lost state.** An emptied Redis allows 1/M of the limit more. A failover that loses its end allows the units that the
//!   region had admitted and granted in the lost time: up to L, since grants to it are read again.
//! - **Resets** allow once more the units that other regions admit before they hear of it, and grants of windows in flight at the
//!   reset, and units of before that a region gives back which has not heard of it.
//! - **Overrides**: no more than the largest limit in effect.
//!
//! # Evidence
//!
//! `tests/regions` simulates two to five regions with delay, jitter, loss, cuts in one or both directions, several and paused
//! readers, trimmed streams, clocks that are apart and stepped, costs around L/R, merged checks, and the operations above. It
//! asserts at each admission the bounds of E; at denials of gossip those of denials, unless state was lost or reset, or a peer
//! is cut off; at denials that the check is admitted after `retry_after`, without news; at each step of escrow that Φ is at
//! most L minus the pooled usage. Each planted mistake violates one of them.
//!
//! `tests/regions/replicator` runs replicators on real servers: killed, behind lossy and cut connections, with trimmed, emptied
//! and restored streams. All regions end with equal counts, to the unit.
//!
//! Not simulated: several keys, changes of R or of weights, and clock steps or overrides together with operations or lost
//! state. Not asserted: that Φ equals L minus the pooled usage, how soon grants arrive, and how long debt lasts.

mod mode;
pub mod reference;
mod replicated;
mod replication;
pub mod replicator;
pub mod script;

pub use self::mode::{Mode, WhenCutOff};
pub(crate) use self::replicated::Replicated;
pub use self::replication::Replication;
