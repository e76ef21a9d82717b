//! Runs the scripts of reservations on a server, as test builds whose clock and expiries the test controls:
//! see [`script`](crate::script).

use std::collections::HashMap;

use redis::{Connection, ConnectionLike, Value};
use tidegate::Quota;
use tidegate::algorithm::{RawState, Storage, all_scripts};
use tidegate::reference::Before;
use tidegate::script::Script;

use super::call::{Call, Group, Hold, Item, Phase, Reply, Settled, Taken, Token, Verb};
use super::player::{Seen, Subject};
use crate::plan;
use crate::script::{connect, group_arguments, is_bounded, outcomes, prepend, span, test_build};

/// A set that loses its last member is removed with its expiry, as in Redis.
const ZREM: &str = r"
local function test_zrem(key, ...)
  local removed = redis.call('ZREM', key, ...)
  if redis.call('EXISTS', key) == 0 then test_unlink(key) end
  return removed
end
";

/// Replies with the state of the keys.
const DUMP: &str = "return 0";

/// The test builds of the scripts, loaded into a server.
pub struct HoldScripts {
    connection: Connection,
    digests: HashMap<&'static str, String>,
    prefix: String,
    quotas: Vec<Quota>,
}

impl HoldScripts {
    /// Loads the scripts after a change to the texts of `reserve` and `settle`.
    pub fn load(url: &str, change: impl Fn(&str) -> String) -> Self {
        let mut connection = connect(url);
        let mut load = |text: &str| {
            let text = text.replace("call('ZREM', ", "test_zrem(");
            let (text, _) = test_build(&prepend(ZREM, &text));
            redis::cmd("SCRIPT").arg("LOAD").arg(text).query::<String>(&mut connection).unwrap()
        };
        let text = |script: &Script| match script.name {
            "reserve" | "settle" | "reserve@span" | "settle@span" => change(script.text),
            _ => script.text.to_owned(),
        };
        let mut digests: HashMap<&str, String> =
            all_scripts().map(|script| (script.name, load(&text(script)))).collect();
        digests.insert("dump", load(DUMP));
        let prefix = format!("holds:{}", rand::random::<u64>());
        Self { connection, digests, prefix, quotas: Vec::new() }
    }

    /// Starts a sequence on untouched keys.
    pub fn start(&mut self, quotas: &[Quota]) {
        self.quotas = quotas.to_vec();
        let mut pipe = redis::cmd("DEL");
        for gate in 0..quotas.len() {
            for key in [self.state_key(gate), self.holds_key(gate)] {
                pipe.arg(format!("{key}:expires")).arg(key);
            }
        }
        pipe.exec(&mut self.connection).unwrap();
    }

    fn state_key(&self, gate: usize) -> String {
        format!("{}:{gate}", self.prefix)
    }

    fn holds_key(&self, gate: usize) -> String {
        format!("{}:{gate}:holds", self.prefix)
    }

    fn evalsha(&self, script: &str, keys: &[String], args: &[String], now: u64) -> redis::Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.digests[script]).arg(keys.len()).arg(keys).arg(args);
        command.arg(is_bounded(script).then_some("")).arg(now);
        command
    }

    /// As [`evalsha`](Self::evalsha), for a script that takes these quotas.
    fn evalsha_of(
        &self,
        quotas: impl IntoIterator<Item = Quota>,
        script: &str,
        keys: &[String],
        args: &[String],
        now: u64,
    ) -> redis::Cmd {
        match span(quotas, now) {
            None => self.evalsha(script, keys, args, now),
            Some(span) => self.evalsha(&format!("{script}@span"), keys, &[args, &span].concat(), now),
        }
    }

    fn command(&self, call: &Call) -> redis::Cmd {
        let now = call.now_us;
        let write = |verb: &str, gate: usize, more: &[u64]| {
            let quota = self.quotas[gate];
            let mut args: Vec<String> = quota.kind().args_at(now).map(|arg| arg.to_string()).into();
            args.extend(more.iter().map(u64::to_string));
            if verb == "refund" {
                args.push(String::new());
            }
            let script = format!("{verb}:{}", quota.algorithm());
            self.evalsha_of([quota], &script, &[self.state_key(gate)], &args, now)
        };
        match &call.verb {
            Verb::Nothing => redis::cmd("PING"),
            Verb::Check(group) => self.group(&plan_group(group, &self.quotas), now),
            Verb::Take(groups) => self.reserve(groups, now),
            Verb::Settle(items, token) => {
                let mut keys = Vec::new();
                let quotas = items.iter().map(|item| self.quotas[item.gate]);
                let mut args = quota_arguments(quotas.clone(), now);
                for (quota, item) in items.iter().enumerate() {
                    keys.extend([self.state_key(item.gate), self.holds_key(item.gate)]);
                    args.extend([(quota + 1).to_string(), token.id.clone(), item.units.to_string()]);
                    args.extend([token.ttl_us.to_string(), what(token).to_owned(), item.actual.to_string()]);
                }
                self.evalsha_of(quotas, "settle", &keys, &args, now)
            }
            Verb::Penalize(gate, units) => write("penalize", *gate, &[*units]),
            Verb::Refund(gate, units) => write("refund", *gate, &[*units]),
            Verb::Block(gate, for_us) => {
                let storage = self.quotas[*gate].kind().definition().storage;
                write("block", *gate, &[*for_us, u64::from(storage == Storage::Log)])
            }
            Verb::Reset(gate) => {
                self.evalsha("reset", &[self.state_key(*gate), self.holds_key(*gate)], &[], now)
            }
            Verb::LoseState(gate) => lose(self.state_key(*gate)),
            Verb::LoseHolds(gate) => lose(self.holds_key(*gate)),
        }
    }

    fn group(&self, group: &plan::Group, now: u64) -> redis::Cmd {
        let keys: Vec<String> = group.items.iter().map(|item| self.state_key(item.target.key)).collect();
        let quotas = group.items.iter().map(|item| item.target.quota);
        self.evalsha_of(quotas, "group", &keys, &group_arguments(std::slice::from_ref(group), now), now)
    }

    fn reserve(&self, groups: &[Group], now: u64) -> redis::Cmd {
        let mut keys = Vec::new();
        let mut args = quota_arguments(self.quotas.iter().copied(), now);
        for Group { n, items, hold } in groups {
            let (id, ttl, what) = hold.as_ref().map_or_else(Default::default, |token| {
                (token.id.clone(), token.ttl_us.to_string(), what(token))
            });
            args.extend([n.to_string(), items.len().to_string(), id, ttl, what.to_owned()]);
            for Item { gate, cost, max_delay, names_holds } in items {
                keys.push(self.state_key(*gate));
                if *names_holds {
                    keys.push(self.holds_key(*gate));
                }
                let max_delay = max_delay.map_or_else(String::new, |delay| delay.to_string());
                let names_holds = u8::from(*names_holds).to_string();
                args.extend([(gate + 1).to_string(), cost.to_string(), max_delay, names_holds]);
            }
        }
        self.evalsha_of(self.quotas.iter().copied(), "reserve", &keys, &args, now)
    }

    fn reply(&self, call: &Call, value: &Value) -> Result<Reply, String> {
        let numbers = match &call.verb {
            Verb::Nothing | Verb::LoseState(_) | Verb::LoseHolds(_) => return Ok(Reply::Done),
            _ => first(value)?,
        };
        match &call.verb {
            Verb::Check(group) => {
                let groups = [plan_group(group, &self.quotas)];
                let taken = outcomes(&groups, call.now_us, numbers)?.into_iter();
                let taken = taken.map(|(k, before)| Taken { k, before, repeated: Vec::new() });
                Ok(Reply::Taken(taken.collect()))
            }
            Verb::Take(groups) => self.taken(groups, call.now_us, numbers).map(Reply::Taken),
            Verb::Settle(items, _) => {
                let replies = integers(numbers)?;
                if replies.len() != 1 + items.len() || replies[0] as u64 != call.now_us {
                    return Err(format!("{replies:?}"));
                }
                let settled = replies[1..].iter().map(|reply| match reply {
                    0 => Ok(Settled::Nothing),
                    1 => Ok(Settled::Settled),
                    2 => Ok(Settled::Late),
                    _ => Err(format!("{replies:?}")),
                });
                settled.collect::<Result<_, _>>().map(Reply::Settled)
            }
            _ => match numbers {
                Value::Int(_) | Value::Array(_) => Ok(Reply::Done),
                other => Err(format!("{other:?}")),
            },
        }
    }

    /// Parses a reply in the format that the header of `reserve.lua` defines.
    fn taken(&self, groups: &[Group], now: u64, reply: &Value) -> Result<Vec<Taken>, String> {
        let numbers = integers(reply)?;
        let mut rest = numbers.iter().copied();
        let mut signed = || rest.next().ok_or_else(|| format!("a short reply: {numbers:?}"));
        let unsigned = |number: i64| u64::try_from(number).map_err(|_| format!("{number} in {numbers:?}"));
        if unsigned(signed()?)? != now {
            return Err(format!("another time in {numbers:?}"));
        }
        let mut taken = Vec::new();
        for group in groups {
            let k = unsigned(-1 - signed()?)?;
            let mut before = Vec::new();
            for item in &group.items {
                let mut raw = RawState::default();
                let first = signed()?;
                raw[0] = unsigned(if first < 0 { -1 - first } else { first })?;
                let blocked_until_us = if first < 0 { unsigned(signed()?)? } else { 0 };
                for number in raw.iter_mut().take(self.quotas[item.gate].kind().definition().fields).skip(1) {
                    *number = unsigned(signed()?)?;
                }
                before.push(Before { blocked_until_us, raw });
            }
            let mut repeated = Vec::new();
            for _ in 0..signed()? {
                let index = unsigned(signed()?)?.checked_sub(1).ok_or("an item 0")?;
                repeated.push(index as usize);
            }
            taken.push(Taken { k, before, repeated });
        }
        if rest.next().is_some() { Err(format!("a longer reply: {numbers:?}")) } else { Ok(taken) }
    }
}

impl Subject for HoldScripts {
    fn call(&mut self, call: &Call) -> Result<(Reply, Vec<Seen>), String> {
        let now = call.now_us;
        let peek = plan_peek(&self.quotas);
        let gates = 0..self.quotas.len();
        let keys: Vec<String> = gates.flat_map(|gate| [self.state_key(gate), self.holds_key(gate)]).collect();
        let mut pipe = redis::pipe();
        pipe.add_command(self.command(call));
        pipe.add_command(self.group(&peek, now));
        pipe.add_command(self.evalsha("dump", &keys, &[], now));
        let replies = self.connection.req_packed_commands(&pipe.get_packed_pipeline(), 0, 3).unwrap();
        let reply = self.reply(call, &replies[0])?;
        let peeked = outcomes(&[peek], now, first(&replies[1])?)?;
        let (_, before) = &peeked[0];
        let Value::Array(dump) = &replies[2] else { return Err(format!("{:?}", replies[2])) };
        let seen = before.iter().zip(dump[1..].chunks(4)).map(|(before, dump)| {
            let [_, state_expires, holds, holds_expire] = dump else { return Err(format!("{dump:?}")) };
            Ok(Seen {
                before: *before,
                state_expires_ms: string(state_expires)?.parse().ok(),
                holds: parse_holds(holds)?,
                holds_expire_ms: string(holds_expire)?.parse().ok(),
            })
        });
        Ok((reply, seen.collect::<Result<_, String>>()?))
    }
}

pub(crate) fn lose(key: String) -> redis::Cmd {
    let mut command = redis::cmd("DEL");
    command.arg(format!("{key}:expires")).arg(key);
    command
}

const fn what(token: &Token) -> &'static str {
    if token.is_refunded { "back" } else { "keep" }
}

fn plan_group(group: &Group, quotas: &[Quota]) -> plan::Group {
    let part = |item: &Item| plan::Part {
        target: plan::Target { key: item.gate, quota: quotas[item.gate] },
        cost: item.cost,
        max_delay: item.max_delay,
    };
    plan::Group { n: group.n, items: group.items.iter().map(part).collect() }
}

fn plan_peek(quotas: &[Quota]) -> plan::Group {
    let item = |gate| Item { gate, cost: 1, max_delay: None, names_holds: false };
    plan_group(&Group { n: 0, items: (0..quotas.len()).map(item).collect(), hold: None }, quotas)
}

/// Returns the reply of the script, without the states that the test build adds.
pub(crate) fn first(reply: &Value) -> Result<&Value, String> {
    match reply {
        Value::Array(values) => values.first().ok_or_else(|| "an empty reply".to_owned()),
        other => Err(format!("{other:?}")),
    }
}

pub(crate) fn integers(reply: &Value) -> Result<Vec<i64>, String> {
    redis::from_redis_value_ref(reply).map_err(|error| format!("{error}: {reply:?}"))
}

pub(crate) fn string(value: &Value) -> Result<String, String> {
    redis::from_redis_value_ref(value).map_err(|error| format!("{error}: {value:?}"))
}

/// Parses ZRANGE … WITHSCORES.
fn parse_holds(reply: &Value) -> Result<Vec<Hold>, String> {
    let fields: Vec<String> =
        redis::from_redis_value_ref(reply).map_err(|error| format!("{error}: {reply:?}"))?;
    let hold = |pair: &[String]| {
        let mut parts = pair[0].split(':');
        let hold = Hold {
            id: parts.next()?.to_owned(),
            units: parts.next()?.parse().ok()?,
            ttl_us: parts.next()?.parse().ok()?,
            phase: match parts.next()? {
                "keep" => Phase::Keep,
                "back" => Phase::Back,
                "late" => Phase::Late,
                _ => return None,
            },
            end_us: pair[1].parse().ok()?,
        };
        parts.next().is_none().then_some(hold)
    };
    let holds = fields.chunks(2).map(hold).collect::<Option<_>>();
    holds.ok_or_else(|| format!("no holds: {fields:?}"))
}

/// Returns the arguments before the groups or items: one quota for each of them.
pub(crate) fn quota_arguments(quotas: impl Iterator<Item = Quota>, now: u64) -> Vec<String> {
    let quotas: Vec<Quota> = quotas.collect();
    let mut args = vec![quotas.len().to_string()];
    for quota in quotas {
        args.push(quota.algorithm().to_owned());
        args.extend(quota.kind().args_at(now).map(|arg| arg.to_string()));
    }
    args
}
