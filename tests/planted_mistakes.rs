//! Tests the property that compares the scripts with the reference: each mistake planted in the Lua makes it
//! fail.

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use tidegate::algorithm::all_scripts;

use crate::lua_agrees_with_reference::agree;
use crate::support::plan::{self, Family, Plan};
use crate::support::script::TestScripts;

/// A text in a script, and the wrong text that replaces it.
type Mistake = (&'static str, &'static str);

/// Enough to find a mistake that is observable once in a thousand calls.
const SEQUENCES: u32 = 2_000;

/// A short run plants the first mistake of each test, and every fifth after it.
const SAMPLE: usize = 5;

fn assert_all_found(plans: impl Strategy<Value = Plan>, mistakes: &[Mistake]) {
    let server = tidegate_testkit::Server::process(&[]).unwrap();
    assert!(first_failure(&plans, server.url(), &[], SEQUENCES / 10).is_none(), "unmodified scripts fail");
    for &mistake in mistakes.iter().step_by(if plan::is_long_run() { 1 } else { SAMPLE }) {
        let failure = first_failure(&plans, server.url(), &[mistake], SEQUENCES);
        assert!(failure.is_some(), "not found: {mistake:?}");
    }
}

/// Returns the first failure, if any. Every run uses the same sequences.
fn first_failure(
    plans: &impl Strategy<Value = Plan>,
    url: &str,
    mistakes: &[Mistake],
    sequences: u32,
) -> Option<String> {
    for (right, _) in mistakes {
        assert!(all_scripts().any(|script| script.text.contains(right)), "no script contains `{right}`");
    }
    let plant = |text: String, (right, wrong): &Mistake| text.replace(right, wrong);
    let change = |text: String| mistakes.iter().fold(text, plant);
    let scripts = std::cell::RefCell::new(TestScripts::load_changed(url, change));
    let config =
        Config { cases: sequences, max_shrink_iters: 0, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let run =
        TestRunner::new_with_rng(config, rng).run(plans, |plan| agree(&plan, &mut scripts.borrow_mut()));
    run.err().map(|error| error.to_string())
}

#[test]
fn token_bucket() {
    assert_all_found(
        plan::uniform(Family::TokenBucket),
        &[
            // A check requires one tick too many or too few.
            ("math.floor((full - ticks) / unit))", "math.floor((full - ticks - 1) / unit))"),
            ("math.floor((full - ticks) / unit) or 0", "math.floor((full - ticks - 1) / unit) or 0"),
            ("ticks + n * unit <= full", "ticks + n * unit <= full + 1"),
            ("and ticks + n * unit > full then", "and ticks + n * unit > full + 1 then"),
            // A charge is lost, or a merged take charges only one check.
            ("if k * cost > 0 or (ahead and", "if (ahead and"),
            ("ticks + k * cost * per", "ticks + cost * per"),
            ("local after = ticks + k * unit", "local after = ticks + unit"),
            // A level dated in the future is not re-dated.
            ("if k * cost > 0 or (ahead and n * cost > 0) then", "if k * cost > 0 then"),
            // A level of another version of the quota is read as one of this version, or truncated instead of
            // rounded.
            ("if old_per ~= per then", "if false then"),
            ("EXACT) + 0.5)", "EXACT))"),
            // A level is split at the wrong position.
            ("sub(text, 1, first - 1)", "sub(text, 1, first - 2)"),
            // A block that has ended is kept.
            ("if blocked > now then text = text", "if blocked > 0 then text = text"),
            // The expiry is not extended, not set, or set too early.
            ("if needed > now and now + call('PTTL', key) * 1000 < needed then", "if false then"),
            ("call('PEXPIREAT', key, format(WHOLE, math.ceil(at / 1000)))", ""),
            ("call('PEXPIREAT', key, last_expiry)", ""),
            // The expiry is kept although the level empties later, or although another version set it.
            ("if begin ~= expiry_step then\n", "if false then\n"),
            (
                "if begin ~= expiry_step then expire(key, begin + step, blocked)",
                "if not expiry_step then expire(key, begin + step, blocked)",
            ),
            ("old_per == per and old_quota == quota and", ""),
            ("' of ' .. ARGV[arg] .. ', '", "' of 1, '"),
            ("', ' .. ARGV[arg + 1] .. '/us at '", "', 1/us at '"),
            ("' of ' .. argv[1] .. ', '", "' of 1, '"),
            ("', ' .. argv[2] .. '/us at '", "', 1/us at '"),
            ("elseif n * cost > 0 and not expiry_step then", "elseif n * cost > 0 and expiry_step then"),
            ("math.ceil(at / 1000)", "math.floor(at / 1000)"),
            ("math.ceil((begin + step) / 1000)", "math.floor((begin + step) / 1000)"),
            // The expiry of another key is reused.
            ("if begin ~= last_begin then", "if not last_begin then"),
            // A refund ignores its stamp, or accepts one in the future.
            ("units * per - math.max(0, now - (stamp or now)) * rate", "units * per"),
            // A refund of 0 units writes.
            ("if left > 0 then charge", "if true then charge"),
            ("math.max(0, now - (stamp or now))", "(now - (stamp or now))"),
            // A charge of used units ignores the cap, its own size, or a part of a unit; or reports another number.
            ("math.min(ARGV[5] + 0, room(ARGV[6] + 0, a, b))", "ARGV[5] + 0"),
            ("math.min(ARGV[5] + 0, room(ARGV[6] + 0, a, b))", "room(ARGV[6] + 0, a, b)"),
            (
                "(math.min(most * per, MAX_TICKS) - ticks) / per",
                "(math.min(most * per, MAX_TICKS) - ticks - 1) / per",
            ),
            ("reply = { now, units,", "reply = { now, ARGV[5] + 0,"),
            // A penalty charges nothing. A block ends 1 µs too early.
            ("charge(key, 1, 1, 1, tonumber(ARGV[5])", "charge(key, 1, 1, 0, tonumber(ARGV[5])"),
            ("math.min(now + duration, EXACT)", "math.min(now + duration - 1, EXACT)"),
            // A peek charges.
            ("charge(key, n, own, own, cost", "charge(key, math.max(n, 1), own, math.max(own, 1), cost"),
            // The fast path accepts a level with a future date.
            ("if at > now or", "if"),
        ],
    );
}

#[test]
fn leaky_bucket() {
    assert_all_found(
        plan::uniform(Family::LeakyBucket),
        &[
            // The first check waits for its own cost too.
            ("math.floor(last / (cost * per)) + 1", "math.floor(last / (cost * per))"),
            ("math.floor(last / unit) + 1", "math.floor(last / unit)"),
            // A delay equal to the accepted maximum is denied. A delay 1 µs above it is accepted.
            ("own = last < 0 and 0", "own = last <= 0 and 0"),
            ("k = last < 0 and 0", "k = last <= 0 and 0"),
            ("max_delay * rate - ticks", "(max_delay + 1) * rate - ticks"),
            ("math.min(own, math.floor(last / (cost * per)) + 1)", "math.floor(last / (cost * per)) + 1"),
            ("math.min(k, math.floor(last / unit) + 1)", "math.floor(last / unit) + 1"),
        ],
    );
}

#[test]
fn fixed_window() {
    assert_all_found(
        plan::uniform(Family::FixedWindow),
        &[
            // A charge of used units ignores the units that are used.
            ("math.max(0, math.min(most, MAX_UNITS) - used)", "math.min(most, MAX_UNITS)"),
            // The fast path admits one unit too many, or too few.
            ("if after > limit then", "if after > limit + 1 then"),
            ("math.floor((limit - used) / cost) or 0", "math.floor((limit - used - 1) / cost) or 0"),
            // The fast path returns none of the units that it did not admit, one unit too few, or all units.
            ("call('DECRBY', key, k == 0 and text or format('%d', (n - k) * cost))", ""),
            ("format('%d', (n - k) * cost)", "format('%d', (n - k) * cost - 1)"),
            ("k == 0 and text or format('%d'", "text or format('%d'"),
            // A merged take charges only one check.
            ("n == 1 and argv[arg + 1] or format('%d', units)", "argv[arg + 1]"),
            // A count whose window has ended, or ends too late, is read as a current one.
            ("if not (ends >= earliest and ends <= latest", "if not (ends <= latest"),
            ("if not (ends >= earliest and ends <= latest", "if not (ends >= earliest"),
            ("local earliest, latest = at / 1000 + 1,", "local earliest, latest = at / 1000,"),
            // The charge remains although the slow path charges again.
            ("        call('DECRBY', key, text)\n        return", "        return"),
            // A window has no end, or ends up to 1 ms early.
            ("call('PEXPIREAT', key, expiry)", ""),
            (
                "1, math.ceil((at + window) / 1000)\n  if argv",
                "1, math.floor((at + window) / 1000)\n  if argv",
            ),
            // The slow path counts a window that has ended, or that ends too late.
            ("used == 0 or found <= now_ms", "used == 0 or found < now_ms"),
            ("elseif found >= earliest and found <= latest then", "else"),
            ("local ahead = found ~= nil and found ~= ends", "local ahead = false"),
            ("used + n * cost <= limit", "used + n * cost <= limit + 1"),
            // The script adds to the text of a block, keeps a block that has ended, or loses a charge.
            ("if found == ends and blocked == 0 then", "if found == ends then"),
            ("elseif blocked > now then\n      call('SET'", "elseif blocked > 0 then\n      call('SET'"),
            ("call('SET', key, format(WHOLE, after))\n", ""),
            ("call('INCRBY', key, format(WHOLE, after - used))", ""),
            // An expiry is not set, or is the window's end although a block lasts longer.
            ("expire(key, after > 0 and ends * 1000 or 0, blocked)", ""),
            ("expire(key, after > 0 and ends * 1000 or 0, blocked)", "expire(key, ends * 1000, 0)"),
            ("expire(key, ends * 1000, 0)", ""),
            // A key without units is kept.
            ("    else\n      call('UNLINK', key)\n", ""),
            // Units of another window are refunded to this one, or more units than were used.
            ("if units > 0 and (not stamp or stamp == found * 1000) then", "if units > 0 then"),
            ("units = math.min(units, used)\n    if units > 0", "if used > 0"),
        ],
    );
}

#[test]
fn fixed_window_by_the_clock() {
    assert_all_found(
        plan::uniform(Family::ClockWindow),
        &[
            ("(at - ARGV[arg + 3]) % window", "at % window"),
            ("(at - argv[4]) % window", "at % window"),
            // The next window starts at its exact microsecond, when the old key still exists.
            ("local at = now_ms * 1000", "local at = now"),
            ("local at = now - now % 1000", "local at = now"),
            ("elseif found >= earliest and found <= latest then", "else"),
            ("math.min(used + units, MAX_UNITS)", "math.min(used + cost, MAX_UNITS)"),
        ],
    );
}

/// Each call is first made for the window of the previous call.
#[test]
fn calendar_window() {
    assert_all_found(
        plan::uniform(Family::CalendarWindow),
        &[
            // A call for a window that is over, or that has not begun, is not refused.
            ("if now < from or now >= to then", "if now < from then"),
            ("if now < from or now >= to then", "if now >= to then"),
            ("if now < from or now >= to then", "if false then"),
            // The first µs of a window is outside of it, or the first of the next one inside.
            ("if now < from or now >= to then", "if now <= from or now >= to then"),
            ("if now < from or now >= to then", "if now < from or now > to then"),
            // The span is read from the wrong end.
            ("local to, from = table.remove(ARGV)", "local from, to = table.remove(ARGV)"),
            // A refusal reports a rounded time, from which the client computes the window again.
            ("'SPAN ' .. format('%.0f', now)", "'SPAN ' .. now"),
            // A window begins by the clock of UTC, or ends 1 ms early.
            ("(at - ARGV[arg + 3]) % window", "at % window"),
            ("latest = math.ceil((at - (at", "latest = math.ceil((at - 1000 - (at"),
        ],
    );
}

#[test]
fn sliding_log() {
    assert_all_found(
        plan::uniform(Family::SlidingLog),
        &[
            // An entry counts 1 µs too long.
            ("format(WHOLE, now - window)", "format(WHOLE, now - window - 1)"),
            ("now - at < window", "now - at <= window"),
            ("(stamp or now) + window <= now", "(stamp or now) + window < now"),
            // The reported retry is one unit too early.
            ("local needed = total - limit + cost", "local needed = total - limit + cost - 1"),
            ("first_total >= needed", "first_total >= needed - 1"),
            ("first_at, first_total = now, total", "first_at, first_total = at, total"),
            // The retry after a charge of used units is that of another cost.
            ("charge(key, 1, 1, units, 1, blocked", "charge(key, 1, 1, 1, units, blocked"),
            // Units are lost when entries with a future date are merged, or those entries are not merged.
            ("return total and units and integer(total - units)", "return total"),
            ("if ahead then total = redate(key, used, total, blocked) end", ""),
            ("total, first_at, first_total = redate(key, used, total, blocked, first_at, first_total)", ""),
            // One entry too many is removed.
            ("math.min(excess, TRIM) - 1", "math.min(excess, TRIM)"),
            ("expire(key, used > 0 and at + window or 0, blocked)", ""),
            // A refund removes the newest units.
            ("total - used + math.min(units, used)", "total - used"),
            ("rank_of(key, base + 1)", "rank_of(key, base)"),
            ("if blocked > 0 and blocked <= now then call('ZREM', key, 'block') end", ""),
        ],
    );
}

#[test]
fn sliding_log_that_counts_denied_checks() {
    assert_all_found(
        plan::uniform(Family::CountingLog),
        &[
            ("math.min((n - own) * cost, limit)", "(n - own) * cost"),
            ("math.min((n - own) * cost, limit)", "math.min(n * cost, limit)"),
            ("rank_of(key, total - limit + 1)", "rank_of(key, total - limit)"),
            ("charge(key, 1, 1, 0, 1, ends, true", "charge(key, 1, 0, 0, 1, ends, true"),
        ],
    );
}

#[test]
fn sliding_counter() {
    assert_all_found(
        plan::uniform(Family::SlidingCounter),
        &[
            // The share of the previous window is rounded up, or a window ends 1 µs too early.
            ("math.floor(prev * (start + window - now)", "math.ceil(prev * (start + window - now)"),
            ("+ floor(prev * (start + window - now)", "+ math.ceil(prev * (start + window - now)"),
            ("math.floor(prev * (start + window - now)", "math.floor(prev * (start + window - now - 1)"),
            ("+ floor(prev * (start + window - now)", "+ floor(prev * (start + window - now - 1)"),
            ("since + window >= start", "since + window > start"),
            ("stored_start + window >= start", "stored_start + window > start"),
            ("estimate + n * cost <= limit", "estimate + n * cost <= limit + 1"),
            ("estimate + n * cost > limit", "estimate + n * cost > limit + 1"),
            // A charge of used units ignores the previous window.
            ("math.min(most, MAX_UNITS) - cur - rest", "math.min(most, MAX_UNITS) - cur"),
            ("floor((limit - estimate) / cost)", "floor((limit - estimate - 1) / cost)"),
            ("since > now", "since > now + 1e12"),
            ("if stored_start >= start then return end", ""),
            ("start + 2 * window or prev", "start + window or prev"),
            ("math.ceil((start + 2 * window) / 1000)", "math.ceil((start + window) / 1000)"),
            ("has_expiry = since == start and cur > 0", "has_expiry = since == start"),
            ("has_expiry = count, before, count > 0", "has_expiry = count, before, true"),
            ("elseif stamp + window >= start then", "else"),
            ("math.min(cur + units, MAX_UNITS)", "math.min(cur + cost, MAX_UNITS)"),
            ("cur + k * cost, prev", "cur + cost, prev"),
        ],
    );
}

#[test]
fn debts_above_every_limit() {
    assert_all_found(
        plan::indebted(&Family::ALL),
        &[
            ("math.min(ticks + k * cost * per, MAX_TICKS)", "ticks + k * cost * per"),
            ("math.min(used + units, MAX_UNITS)", "used + units"),
            ("math.min(cur + units, MAX_UNITS)", "cur + units"),
            ("units = math.min(units, math.max(0, MAX_TOTAL - used))", ""),
            ("if total > MAX_TOTAL then", "if false then"),
        ],
    );
}

/// In a 32-bit build of Redis, `%d` holds only 32 bits, so the scripts use a slower format. The stored texts
/// are equal.
#[test]
fn scripts_agree_with_reference_on_32_bit_redis() {
    let server = tidegate_testkit::Server::process(&[]).unwrap();
    let as_on_32_bit = [("stamp + 0 == now", "false"), ("#stamp ~= 16", "true")];
    for plans in [plan::mixed().boxed(), plan::indebted(&Family::ALL).boxed()] {
        assert_eq!(first_failure(&plans, server.url(), &as_on_32_bit, plan::sequences()), None);
    }
}

#[test]
fn groups() {
    assert_all_found(
        plan::mixed(),
        &[
            // A group admits as many as its last item allows, or as many as each item alone allows.
            ("k = math.min(k, found[i][3])", "k = found[i][3]"),
            (
                "n, own, k, cost, blocked, ahead, a, b, c, d, e)",
                "n, own, own, cost, blocked, ahead, a, b, c, d, e)",
            ),
            // A denial by another item is counted as a denied check of a log. A reply lacks a value that only
            // the state after the charge has.
            ("math.min((n - own) * cost, limit)", "math.min((n - k) * cost, limit)"),
            ("row[#row + 1] = after or c", "row[#row + 1] = c"),
            // An item of cost 0 denies.
            ("<= limit) or cost == 0 then", "<= limit) then"),
            ("if k * cost > 0 then", "if k > 0 then"),
            ("if cost > 0 and ticks + n * unit > full", "if ticks + n * unit > full"),
        ],
    );
}
