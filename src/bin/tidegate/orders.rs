//! `switch`, `override` and `orders`.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate::{Limiter, Order, Switch as To};

use crate::args::{Override, Switch, SwitchTo};
use crate::failure::Failure;
use crate::output::{Output, Text, Tone, table};
use crate::units::human;

/// Whether it was meant.
pub(crate) async fn switch(switch: &Switch, limiter: &Limiter, out: Output) -> Result<bool, Failure> {
    let Switch { gate, to, lasts, confirm } = switch;
    let (to, asked) = match to {
        SwitchTo::Open => (Some(To::Open), "Let everything pass at"),
        SwitchTo::Closed => (Some(To::Closed), "Deny everything at"),
        SwitchTo::Shadow => (Some(To::Shadow), "Only watch, and let everything pass at"),
        SwitchTo::Off => (None, "Take back the switch of"),
    };
    if to.is_none() && lasts.is_some() {
        return Err(Failure::usage("`off` takes a switch back, and lasts: leave out --for"));
    }
    if !confirm.ask(&format!("{asked} {gate}, in the whole fleet{}?", during(*lasts)))? {
        return Ok(false);
    }
    match to {
        Some(to) => limiter.control().switch(gate, to, *lasts).await?,
        None => limiter.control().end_switch(gate).await?,
    }
    let word = to.map_or("off", To::as_str);
    let text = format!("{gate} is switched {word}{}, seen by all processes within a second", during(*lasts));
    out.say(&json!({ "gate": gate, "switch": word, "ends_in_us": lasts.map(us) }), &[vec![text.into()]])?;
    Ok(true)
}

/// Whether it was meant.
pub(crate) async fn set_override(order: &Override, limiter: &Limiter, out: Output) -> Result<bool, Failure> {
    let Override { key, gate, lasts, confirm, .. } = order;
    let (name, key) = (key.display(), key.as_encoded_bytes());
    let quota = if order.end { None } else { Some(order.quota.required(gate)?) };
    let (question, done) = match &quota {
        Some(quota) => (
            format!("Decide {name} of {gate} by {quota}{}, in the whole fleet?", during(*lasts)),
            format!("{name} of {gate} is decided by {quota}{}", during(*lasts)),
        ),
        None => (
            format!("Give {name} of {gate} the gate's own quota again, in the whole fleet?"),
            format!("{name} of {gate} has the gate's own quota"),
        ),
    };
    if !confirm.ask(&question)? {
        return Ok(false);
    }
    match quota {
        Some(quota) => limiter.control().set_override(gate, key, quota, lasts.unwrap_or_default()).await?,
        None => limiter.control().end_override(gate, key).await?,
    }
    let quota = quota.map(|quota| quota.to_string());
    let json = json!({ "gate": gate, "quota": quota, "ends_in_us": lasts.map(us) });
    out.say(&json, &[vec![(done + ", seen by all processes within a second").into()]])?;
    Ok(true)
}

/// Whether there are any.
pub(crate) async fn list(limiter: &Limiter, out: Output) -> Result<bool, Failure> {
    let orders = limiter.control().orders().await?;
    let mut lines = table(&["gate", "key", "order", "ends in"], orders.iter().filter_map(row).collect());
    if orders.is_empty() {
        lines = vec![vec!["no gate is switched, and no key overridden".into()]];
    }
    let told: Vec<Value> = orders.iter().filter_map(told).collect();
    out.say(&json!({ "orders": told }), &lines)?;
    Ok(!orders.is_empty())
}

/// That some are in force for what is looked at: for a gate, for keys as they are written, or for all.
pub(crate) fn note(orders: &[Order], gate: Option<&str>, keys: Option<&[String]>) -> Option<String> {
    let is_meant = |order: &&Order| match order {
        Order::Switch { gate: of, .. } => gate.is_none_or(|gate| gate == of),
        Order::Override { gate: of, key, .. } => {
            gate.is_none_or(|gate| gate == of) && keys.is_none_or(|keys| keys.contains(key))
        }
        _ => false,
    };
    let count = orders.iter().filter(is_meant).count();
    (count > 0).then(|| format!("orders in force here: {count}, see `tidegate orders`"))
}

fn row(order: &Order) -> Option<Vec<Text>> {
    let ends = |ends_in: &Option<Duration>| match ends_in {
        Some(left) => human(*left).into(),
        None => Text(Tone::Warn, "never".to_owned()),
    };
    match order {
        Order::Switch { gate, switch, ends_in, .. } => {
            let tone = if *switch == To::Closed { Tone::Bad } else { Tone::Warn };
            Some(vec![gate.as_str().into(), "-".into(), Text(tone, switch.to_string()), ends(ends_in)])
        }
        Order::Override { gate, key, quota, ends_in, .. } => {
            Some(vec![gate.as_str().into(), key.as_str().into(), quota.to_string().into(), ends(ends_in)])
        }
        _ => None,
    }
}

fn told(order: &Order) -> Option<Value> {
    match order {
        Order::Switch { gate, switch, ends_in, .. } => {
            Some(json!({ "gate": gate, "switch": switch.as_str(), "ends_in_us": ends_in.map(us) }))
        }
        Order::Override { gate, key, quota, ends_in, .. } => Some(json!({
            "gate": gate,
            "written": key,
            "quota": quota.to_string(),
            "ends_in_us": ends_in.map(us),
        })),
        _ => None,
    }
}

fn during(lasts: Option<Duration>) -> String {
    lasts.map(|lasts| format!(" for {}", human(lasts))).unwrap_or_default()
}

fn us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
