//! Each mistake planted in the scripts makes a sequence differ.

use tidegate::regions::script::all;

use super::Servers;
use super::sequence::Family;
use crate::support::plan;

/// A text in a script, and the wrong text that replaces it.
type Mistake = (&'static str, &'static str);

/// Enough to find a mistake that is observable once in ten thousand steps.
const SEQUENCES: u64 = 1_500;

/// A short run plants the first mistake of each test, and every fourth after it.
const SAMPLE: usize = 4;

fn assert_all_found(family: Family, mistakes: &[Mistake]) {
    let mut servers = Servers::start();
    let mut found = 0;
    for &(right, wrong) in mistakes.iter().step_by(if plan::is_long_run() { 1 } else { SAMPLE }) {
        assert!(all().iter().any(|script| script.text.contains(right)), "no script contains `{right}`");
        servers.0.iter_mut().for_each(|pair| pair.load(|text| text.replace(right, wrong)));
        let result = servers.run(family, 0..SEQUENCES);
        assert!(result.is_err(), "not found by {family:?}: `{wrong}` in place of `{right}`");
        found += 1;
    }
    eprintln!("{family:?}: {found} mistakes found");
}

#[test]
fn mistakes_in_the_application_are_found() {
    assert_all_found(
        Family::TokenBucket,
        &[
            // Without the cursor, a batch is applied twice, or is lost.
            ("if stored ~= ARGV[1] or now", "if now"),
            ("call('SET', cursor, ARGV[2])", ""),
            ("or now - read > ARGV[5] + 0", ""),
            // A region claims to know more of a peer than it does, or forgets what it knew.
            ("if ARGV[6] == '1' then", "if true then"),
            ("math.max(read, math.min(before, now))", "read"),
            ("math.max(read, math.min(before, now))", "math.max(read, before)"),
            // Late charges count up to the limit only, without a bound, or are not counted as forgiven.
            ("quota.most = ARGV[arg + 1] + ARGV[arg + 5]", "quota.most = ARGV[arg + 1] + 0"),
            ("math.min(units, quota.room(quota.most, a, b))", "units"),
            ("  count('forgiven', units - counted)", ""),
            // A refund of a peer charges, or is lost.
            ("quota.give_back(key, -units, nil,", "quota.give_back(key, units, nil,"),
            ("if units < 0 then return quota.give_back", "if units < 0 then return tostring"),
            // Of two blocks the last one wins; a block is not lifted; a reset is not applied.
            ("if ends == 0 or ends > blocked then", "if true then"),
            ("if ends == 0 or ends > blocked then", "if ends > blocked then"),
            ("local function reset(_, key)\n  clear(key)", "local function reset(_, key)"),
            // Changes of two versions of a gate are applied by the first.
            ("quotas[ARGV[arg + 1] + 0]", "quotas[1]"),
        ],
    );
}

#[test]
fn mistakes_in_the_outbox_and_the_stream_are_found() {
    assert_all_found(
        Family::FixedWindow,
        &[
            // Denied checks are sent; merged checks as one; the window of arrival is charged.
            ("KEYS[first + i], k * cost)", "KEYS[first + i], n * cost)"),
            ("KEYS[first + i], k * cost)", "KEYS[first + i], k)"),
            ("send(quota, quota.apply and d.start or 0, KEYS", "send(quota, 0, KEYS"),
            ("send(quota, quota.apply and d.start or 0, key, amount)", ""),
            ("send(quota, name, key, -back)", "send(quota, name, key, -amount)"),
            // A later block is replaced by an earlier one.
            ("math.max(ends, before)", "ends"),
            // Charges that wait follow a reset, are sent twice, or a block that waits follows its end.
            ("names = { w.start - ARGV[3], w.start, w.start + ARGV[3] }", "names = {}"),
            ("    call('HDEL', outbox, field)\n", ""),
            ("  call('HDEL', outbox, field_of('block', quota, 0, key))\n", ""),
            (
                "  changes[#changes + 1] = field_of(last, quota, 0, key)\n  changes[#changes + 1] = '0'",
                "  table.insert(changes, 1, '0')\n  table.insert(changes, 1, field_of(last, quota, 0, key))",
            ),
            ("  send_now('reset')\n  clear(key)", "  send_now('reset')"),
            // A block is sent as an instant; what was all given back is sent; nothing leaves the outbox.
            ("format(WHOLE, math.max(0, amount - now))", "amount"),
            ("  if amount ~= '0' then", "  if true then"),
            ("if #fields > 0 then call('HDEL', outbox, unpack(fields)) end", ""),
            // Entries are trimmed too early, or never; the epoch changes.
            ("(now - ARGV[2]) / 1000", "now / 1000"),
            ("call('XTRIM', stream, 'MAXLEN', ARGV[3])", ""),
            ("call('SET', epoch, text, 'NX')", "call('SET', epoch, text)"),
        ],
    );
}

#[test]
fn mistakes_in_groups_are_found() {
    assert_all_found(
        Family::TokenBucket,
        &[
            // An item is charged or sent by its own limit, or all by that of the last one.
            ("KEYS[first + i], n, own, k, cost", "KEYS[first + i], n, own, own, cost"),
            ("KEYS[first + i], k * cost)", "KEYS[first + i], found[i][3] * cost)"),
            ("math.min(k, found[place][3])", "found[place][3]"),
            // Items are decided by the first quota.
            ("states[s][ARGV[at] + 0]", "states[s][1]"),
        ],
    );
}

#[test]
fn mistakes_in_takes_of_one_gate_are_found() {
    let of_all = [
        // Denied checks are sent, or one of several; a blocked key is read as two.
        ("local units = k * cost", "local units = n * cost"),
        ("local units = k * cost", "local units = k"),
        // The units of one key are sent of the next one, too.
        ("if units ~= sent then", "if sent == 1 then"),
        ("if reply[at] < 0 then at = at + 1 end", ""),
    ];
    assert_all_found(Family::LeakyBucket, &of_all);
    assert_all_found(Family::SlidingLog, &of_all);
    assert_all_found(
        Family::FixedWindow,
        &[
            // The window that a row names is not charged elsewhere, or it is read as another key.
            ("prefix, at = field .. start .. ' ', at + 1", "at = at + 1"),
            // The units of the window before count, or a debt is forgotten.
            ("      previous = count\n", "      current = count\n"),
            ("if count > limit or before", "if before"),
            ("format(counts, previous, current + k * cost)", "format(counts, previous, current + n * cost)"),
            ("format(counts, previous, current + k * cost)", "format(counts, 0, current + k * cost)"),
            // A key expires while late charges need it, or never.
            ("math.ceil((start + 2 * window) / 1000)", "ends"),
            ("if not has_expiry then", "if false then"),
            ("local at = is_fixed and now - now % 1000 or now", "local at = now"),
        ],
    );
    assert_all_found(
        Family::SlidingCounter,
        &[
            ("used + floor(previous * (start + window - now) / window)", "used + previous"),
            ("rows[size] = is_fixed and ends or previous", "rows[size] = ends"),
        ],
    );
}

#[test]
fn mistakes_in_fixed_windows_are_found() {
    assert_all_found(
        Family::FixedWindow,
        &[
            // Late units of the previous window lose the debt of then, or are added to that of now.
            (
                "local debt, forgiven = carried(w.prior, w.previous)",
                "local debt, forgiven = carried(0, w.previous)",
            ),
            (
                "local debt, forgiven = carried(w.prior, w.previous)",
                "local debt, forgiven = carried(w.debt, w.previous)",
            ),
            ("math.max(0, forgiven - forgiven_before)", "forgiven"),
            // Windows in which nothing happens repay nothing; debt has no bound; the limit is repaid twice.
            ("math.max(0, w.debt - (times - 1) * limit)", "w.debt"),
            ("return math.min(over, most_debt),", "return over,"),
            ("local over = carry and", "local over ="),
            ("local debt, forgiven = carried(w.prior, used)", "local debt, forgiven = carried(0, used)"),
            // A charge counts in the window of its arrival, or an old one counts.
            ("      place = 'next'", "      place = 'current'"),
            ("      place = 'previous'\n    elseif", "      place = 'current'\n    elseif"),
            ("elseif name ~= w.start then", "elseif false then"),
            ("return count('dropped', units)", "return"),
            ("count('far', units)", ""),
            // Arriving units have no bound, or a refund leaves less than nothing.
            ("math.min(units, math.max(0, limit + most_debt - w[place]))", "units"),
            ("counted = math.max(counted, -w[place])", ""),
            // The counts of a clock that was stepped back.
            ("if is_redated then w.next = 0 end", ""),
            ("local is_redated = here + window < w.start", "local is_redated = here < w.start"),
            // The window before the last one counts; a count is lost at an edge.
            ("for _ = 1, math.min(passed, 2) do", "for _ = 1, math.min(passed, 1) do"),
            (
                "w.previous, w.current, w.next = w.current, w.next, 0",
                "w.previous, w.current, w.next = w.current, 0, 0",
            ),
            // Windows begin with a microsecond, or with the epoch of Unix.
            ("return start + -start % step", "return start"),
            ("at - (at - offset) % window", "at - at % window"),
            // A key expires while late charges or debts need it.
            ("kept = begins(w, 3)", "kept = begins(w, 2)"),
            ("kept = begins(w, 2)", "kept = begins(w, 1)"),
            ("math.max(kept, begins(w, 2 +", "math.max(kept, begins(w, 1 +"),
            // A take ignores the debt, or admits one unit too many.
            ("a, b = w.current + w.debt,", "a, b = w.current,"),
            ("math.max(0, limit - used) / cost", "math.max(0, limit - used + 1) / cost"),
            ("{ d.start, d.debt, d.next }", "{ d.start, d.debt, 0 }"),
            // Units of another window are given back, or more than were used.
            ("if stamp ~= begins(w, 1) then return name, 0 end", ""),
            ("local back = math.min(units, w[place])", "local back = units"),
            ("  count('forgiven', w.forgiven)", ""),
        ],
    );
}

#[test]
fn mistakes_in_sliding_counters_are_found() {
    assert_all_found(
        Family::SlidingCounter,
        &[
            // The share of the previous window, at the clock of a region that is behind.
            ("return math.max(now, begins(w, 0))", "return now"),
            ("math.floor(w.previous * (w.start + window - instant(w)) / window)", "w.previous"),
            // A refund of the previous window gives back units of this one, or one of before it.
            ("place, name = 'previous', w.start - window", "name = w.start - window"),
            ("      if stamp < name then return name, 0 end\n", ""),
            ("elseif stamp and stamp < w.start then", "elseif false then"),
            ("math.min(units, math.max(0, limit + most_debt - w[place]))", "units"),
        ],
    );
}

#[test]
fn mistakes_in_leaky_buckets_are_found() {
    assert_all_found(
        Family::LeakyBucket,
        &[
            // A refund replicates a part of a unit that has drained, or ticks.
            ("math.floor(math.max(0, a - left) / quota.per)", "math.ceil(math.max(0, a - left) / quota.per)"),
            ("quota.per = math.max(1, ARGV[arg + 3])", "quota.per = 1"),
            // A peer's charge is discounted by nothing, but counts once.
            (
                "quota.charge(key, 1, 1, counted, 1, blocked, ahead",
                "quota.charge(key, 1, 1, 1, 1, blocked, ahead",
            ),
            ("KEYS[first + i], k * cost)", "KEYS[first + i], cost)"),
        ],
    );
}

#[test]
fn mistakes_in_sliding_logs_are_found() {
    assert_all_found(
        Family::SlidingLog,
        &[
            // The block of a log is a member.
            ("    call('ZADD', key, format(WHOLE, ends), 'block')\n", ""),
            ("    call('ZREM', key, 'block')\n  end", "  end"),
            ("quota.charge(key, 1, 1, counted, 1, blocked", "quota.charge(key, 1, 1, units, 1, blocked"),
            ("a, b, c, d, e) or c", "a, b, c, d, e) and c"),
        ],
    );
}

#[test]
fn mistakes_in_shares_of_levels_are_found() {
    const LEFT: &str = "math.max(ticks, limit * share.per - rate * (now - cut))";
    assert_all_found(
        Family::LeakyBucket,
        &[
            // The cut is ignored, or a later one begins again.
            (LEFT, "ticks"),
            (LEFT, "math.max(0, limit * share.per - rate * (now - cut))"),
            ("if cut then states[2] =", "if false then states[2] ="),
            // Own units count once, or denied checks change the share.
            ("local units = cost * regions", "local units = cost"),
            ("math.min(cost * regions, limit), ...)", "cost, ...)"),
            ("charge(key, k, own, k,", "charge(key, 1, own, k,"),
            // A check of more than a share is admitted, or one that waits too long.
            ("elseif units > limit then own = 0 end", "end"),
            ("math.floor((max_delay * rate - ticks) / (cost * share.per)) + 1", "own"),
            ("math.floor(share.room(limit, ticks) / cost)", "own"),
        ],
    );
}

#[test]
fn mistakes_in_shares_of_windows_are_found() {
    for family in [Family::FixedWindow, Family::SlidingCounter] {
        assert_all_found(
            family,
            &[
                // The window of the cut is open, or the clock decides which one it is.
                ("w.current = math.max(w.current, limit)", ""),
                ("start_of(cut)", "here"),
                (
                    "if w.start == start then w.current = math.max(w.current, limit)",
                    "if w.start == start then w.current = limit",
                ),
                ("local units = cost * regions", "local units = cost"),
            ],
        );
    }
    assert_all_found(Family::SlidingCounter, &[("w.previous = math.max(w.previous, limit)", "")]);
    assert_all_found(Family::FixedWindow, &[("most_debt, carry = 0, false", "")]);
}

#[test]
fn mistakes_in_shares_of_logs_are_found() {
    assert_all_found(
        Family::SlidingLog,
        &[
            ("share.is_log and cut + ARGV[arg + 2] > now", "false"),
            ("c = math.max(cut, charge(", "c = math.max(0, charge("),
            ("own, a, b = 0, math.max(a, limit), math.max(b, cut)", "own, a, b = 0, limit, cut"),
            ("math.min(cost * regions, limit), ...)", "cost, ...)"),
        ],
    );
}
