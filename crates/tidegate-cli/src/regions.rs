//! `regions`: the replication of gates, as the Redis of one region shows it.

use serde_json::json;
use tidegate::Limiter;
use tidegate::admin::{Inspector, PeerFigures};

use crate::failure::Failure;
use crate::output::{Output, Text, Tone, table};
use crate::units::{human, us};

/// Prints the peers. Returns whether all of them are heard of.
pub(crate) async fn show(limiter: &Limiter, out: Output) -> Result<bool, Failure> {
    let inspector = Inspector::new(limiter)?;
    let Some(figures) = inspector.regions().await? else {
        let nothing = format!("no gate of the namespace {} is replicated", inspector.namespace());
        out.print(&json!({ "peers": [] }), &[vec![Text(Tone::Warn, nothing)]])?;
        return Ok(false);
    };
    let rows = figures.peers.iter().map(|peer| {
        let heard = match peer.silent_for {
            None => Text(Tone::Bad, "never".to_owned()),
            Some(silent) if peer.is_cut_off() => Text(Tone::Bad, format!("{} ago: cut off", human(silent))),
            Some(silent) => format!("{} ago", human(silent)).into(),
        };
        let behind = match peer.behind {
            None => Text(Tone::Warn, "has read nothing".to_owned()),
            Some(behind) => human(behind).into(),
        };
        vec![peer.name.as_str().into(), heard, behind]
    });
    let mut lines = table(&["region", "heard of", "is behind by"], rows.collect());
    lines.push(vec![Text(Tone::Faint, figures.to_string())]);
    let peers = figures.peers.iter().map(|peer| {
        json!({
            "name": peer.name,
            "silent_for_us": peer.silent_for.map(us),
            "is_cut_off": peer.is_cut_off(),
            "behind_us": peer.behind.map(us),
        })
    });
    let json = json!({
        "peers": peers.collect::<Vec<_>>(),
        "waiting": figures.waiting,
        "entries": figures.entries,
        "forgiven": figures.forgiven,
        "dropped": figures.dropped,
        "far": figures.far,
    });
    out.print(&json, &lines)?;
    Ok(!figures.peers.iter().any(PeerFigures::is_cut_off))
}
