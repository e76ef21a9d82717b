//! Runs the scripts of bans on a server, as test builds whose clock and expiries the test controls: see
//! [`script`](crate::script).

use std::collections::HashMap;

use redis::{Connection, ConnectionLike, Value};
use tidegate::algorithm::{RawState, Storage, all_scripts};
use tidegate::reference::Before;
use tidegate::{Ban, Quota};

use super::oracle::{Call, Group, Item, Taken, Verb};
use super::player::{Seen, Subject};
use crate::holds::scripts::{first, integers, lose, quota_arguments, string};
use crate::plan;
use crate::script::{connect, group_arguments, is_bounded, outcomes, span, test_build};

/// Replies with the state of the keys.
const DUMP: &str = "return 0";

/// The test builds of the scripts, loaded into a server.
pub struct BanScripts {
    connection: Connection,
    digests: HashMap<&'static str, String>,
    prefix: String,
    quotas: Vec<Quota>,
}

impl BanScripts {
    /// Loads the scripts after a change to the text of `ban`.
    pub fn load(url: &str, change: impl Fn(&str) -> String) -> Self {
        let mut connection = connect(url);
        let mut load = |text: &str| {
            redis::cmd("SCRIPT").arg("LOAD").arg(test_build(text).0).query::<String>(&mut connection).unwrap()
        };
        let text = |name: &str, text: &str| match name {
            "ban" | "ban@span" => change(text),
            _ => text.to_owned(),
        };
        let mut digests: HashMap<&str, String> =
            all_scripts().map(|script| (script.name, load(&text(script.name, script.text)))).collect();
        digests.insert("dump", load(DUMP));
        let prefix = format!("bans:{}", rand::random::<u64>());
        Self { connection, digests, prefix, quotas: Vec::new() }
    }

    /// Starts a sequence on untouched keys.
    pub fn start(&mut self, quotas: &[Quota]) {
        self.quotas = quotas.to_vec();
        let mut pipe = redis::cmd("DEL");
        for gate in 0..quotas.len() {
            for key in [self.state_key(gate), self.count_key(gate)] {
                pipe.arg(format!("{key}:expires")).arg(key);
            }
        }
        pipe.exec(&mut self.connection).unwrap();
    }

    fn state_key(&self, gate: usize) -> String {
        format!("{}:{gate}", self.prefix)
    }

    fn count_key(&self, gate: usize) -> String {
        format!("{}:{gate}:denials", self.prefix)
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
        quotas: &[Quota],
        script: &str,
        keys: &[String],
        args: &[String],
        now: u64,
    ) -> redis::Cmd {
        match span(quotas.iter().copied(), now) {
            None => self.evalsha(script, keys, args, now),
            Some(span) => self.evalsha(&format!("{script}@span"), keys, &[args, &span].concat(), now),
        }
    }

    /// Returns the commands of a call. The reply to the last one is the reply to the call.
    fn commands(&self, call: &Call) -> Vec<redis::Cmd> {
        let now = call.now_us;
        let block = |gate: usize, for_us: u64| {
            let quota = self.quotas[gate];
            let mut args: Vec<String> = quota.kind().args_at(now).map(|arg| arg.to_string()).into();
            let is_log = quota.kind().definition().storage == Storage::Log;
            args.extend([for_us.to_string(), u8::from(is_log).to_string()]);
            let script = format!("block:{}", quota.algorithm());
            self.evalsha_of(&[quota], &script, &[self.state_key(gate)], &args, now)
        };
        let reset = |keys: &[String]| self.evalsha("reset", keys, &[], now);
        match &call.verb {
            Verb::Nothing => vec![redis::cmd("PING")],
            Verb::Check(group) => vec![self.group(&plan_group(group, &self.quotas), now)],
            Verb::Take(groups) => vec![self.ban(groups, now)],
            Verb::Block(gate, 0) => vec![reset(&[self.count_key(*gate)]), block(*gate, 0)],
            Verb::Block(gate, for_us) => vec![block(*gate, *for_us)],
            Verb::Reset(gate) => vec![reset(&[self.state_key(*gate), self.count_key(*gate)])],
            Verb::LoseState(gate) => vec![lose(self.state_key(*gate))],
            Verb::LoseCount(gate) => vec![lose(self.count_key(*gate))],
        }
    }

    fn group(&self, group: &plan::Group, now: u64) -> redis::Cmd {
        let keys: Vec<String> = group.items.iter().map(|item| self.state_key(item.target.key)).collect();
        let quotas: Vec<Quota> = group.items.iter().map(|item| item.target.quota).collect();
        let args = group_arguments(std::slice::from_ref(group), now);
        self.evalsha_of(&quotas, "group", &keys, &args, now)
    }

    fn ban(&self, groups: &[Group], now: u64) -> redis::Cmd {
        let mut keys = Vec::new();
        let mut args = quota_arguments(self.quotas.iter().copied(), now);
        let bans: Vec<Ban> =
            groups.iter().flat_map(|group| &group.items).filter_map(|item| item.ban).collect();
        args.push(bans.len().to_string());
        for ban in &bans {
            let (within, lasts) = (ban.within().as_micros(), ban.lasts().as_micros());
            args.extend([ban.denials().to_string(), within.to_string(), lasts.to_string()]);
        }
        let mut number = 0;
        for Group { n, is_grant, items } in groups {
            args.extend([n.to_string(), items.len().to_string(), u8::from(*is_grant).to_string()]);
            for Item { gate, cost, max_delay, ban } in items {
                keys.push(self.state_key(*gate));
                let max_delay = max_delay.map_or_else(String::new, |delay| delay.to_string());
                args.extend([(gate + 1).to_string(), cost.to_string(), max_delay]);
                if ban.is_some() {
                    keys.push(self.count_key(*gate));
                    number += 1;
                    args.push(number.to_string());
                } else {
                    args.push("0".to_owned());
                }
            }
        }
        self.evalsha_of(&self.quotas, "ban", &keys, &args, now)
    }

    fn reply(&self, call: &Call, value: &Value) -> Result<Vec<Taken>, String> {
        match &call.verb {
            Verb::Nothing | Verb::LoseState(_) | Verb::LoseCount(_) => Ok(Vec::new()),
            Verb::Check(group) => {
                let groups = [plan_group(group, &self.quotas)];
                let taken = outcomes(&groups, call.now_us, first(value)?)?.into_iter();
                Ok(taken.map(|(k, before)| Taken { k, before, begins: Vec::new() }).collect())
            }
            Verb::Take(groups) => self.taken(groups, call.now_us, first(value)?),
            Verb::Block(..) | Verb::Reset(_) => match first(value)? {
                Value::Int(_) => Ok(Vec::new()),
                other => Err(format!("{other:?}")),
            },
        }
    }

    /// Parses a reply in the format that the header of `ban.lua` defines.
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
                for number in raw.iter_mut().take(self.quotas[item.gate].kind().fields()).skip(1) {
                    *number = unsigned(signed()?)?;
                }
                before.push(Before { blocked_until_us, raw });
            }
            let begins = (0..signed()?).map(|_| Ok(unsigned(signed()?)? as usize - 1));
            taken.push(Taken { k, before, begins: begins.collect::<Result<_, String>>()? });
        }
        if rest.next().is_some() { Err(format!("a longer reply: {numbers:?}")) } else { Ok(taken) }
    }
}

impl Subject for BanScripts {
    fn call(&mut self, call: &Call) -> Result<(Vec<Taken>, Vec<Seen>), String> {
        let now = call.now_us;
        let peek = plan_peek(&self.quotas);
        let gates = 0..self.quotas.len();
        let keys: Vec<String> = gates.flat_map(|gate| [self.state_key(gate), self.count_key(gate)]).collect();
        let mut pipe = redis::pipe();
        let mut commands = self.commands(call);
        commands.extend([self.group(&peek, now), self.evalsha("dump", &keys, &[], now)]);
        let number = commands.len();
        for command in commands {
            pipe.add_command(command);
        }
        let replies = self.connection.req_packed_commands(&pipe.get_packed_pipeline(), 0, number).unwrap();
        let taken = self.reply(call, &replies[number - 3])?;
        let peeked = outcomes(&[peek], now, first(&replies[number - 2])?)?;
        let Value::Array(dump) = &replies[number - 1] else {
            return Err(format!("{:?}", replies[number - 1]));
        };
        let seen = peeked[0].1.iter().zip(dump[1..].chunks(4)).map(|(before, dump)| {
            let [_, state_expires, count, count_expires] = dump else { return Err(format!("{dump:?}")) };
            let count: Vec<String> = redis::from_redis_value_ref(count).map_err(|error| error.to_string())?;
            let denials = match &*count {
                [] => None,
                [_, count] => Some((
                    count.parse().map_err(|_| format!("the count {count:?}"))?,
                    string(count_expires)?.parse().map_err(|_| "a count without an expiry")?,
                )),
                other => return Err(format!("{other:?}")),
            };
            Ok(Seen { before: *before, state_expires_ms: string(state_expires)?.parse().ok(), denials })
        });
        Ok((taken, seen.collect::<Result<_, String>>()?))
    }
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
    let item = |gate| Item { gate, cost: 1, max_delay: None, ban: None };
    plan_group(&Group { n: 0, is_grant: false, items: (0..quotas.len()).map(item).collect() }, quotas)
}
