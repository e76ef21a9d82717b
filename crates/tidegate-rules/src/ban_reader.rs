//! Compiles the `ban` of a `rate_limit`.

use tidegate::Ban;

use super::fields::BAN;
use super::reader::{Fields, Reader};
use crate::limit::Limit;

/// The fields of a `rate_limit` that exclude a ban, each with the reason.
const EXCLUDED: [(&str, &str); 2] = [
    ("in_flight", "units in use deny, not many requests"),
    ("lease", "denials caused by units that other processes lease would count"),
];

/// Reads the ban, if there is one. Returns `None` after an error, which is added to the reader's.
pub(super) fn read(reader: &mut Reader<'_>, rate_limit: &Fields<'_>, limit: Option<Limit>) -> Option<Ban> {
    let node = rate_limit.get("ban")?;
    let excluded = EXCLUDED.into_iter().find(|(field, _)| rate_limit.get(field).is_some());
    if let Some((field, reason)) = excluded {
        let message = format!("`ban` cannot be combined with `{field}`: {reason}");
        reader.error(node.span(), message).hint("remove one of them");
        return None;
    }
    if matches!(limit, Some(Limit::DenyAll(_))) {
        let message =
            "`ban` needs a limit above 0: a limit of 0 denies without a check, so no denial is counted";
        reader.error(node.span(), message).hint("remove one of them");
        return None;
    }
    let fields = reader.map(node, &BAN)?;
    for field in BAN.required {
        if fields.get(field).is_none() && !fields.has_unknown {
            let example = "ban: { after: 20, within: 10m, for: 1h }";
            reader.error(node.span(), format!("a ban needs `{field}`")).hint(format!("write `{example}`"));
            return None;
        }
    }
    let after = fields.get("after").and_then(|node| reader.count("after", 1, node));
    let within = fields.get("within").and_then(|node| reader.duration("within", node));
    let lasts = fields.get("for").and_then(|node| reader.duration("for", node));
    let ban = Ban { after: after?, within: within?, lasts: lasts? };
    if let Err(error) = ban.validate() {
        // The field of the file has another name than the setting.
        reader.error(node.span(), error.to_string().replace("`lasts`", "`for`"));
        return None;
    }
    Some(ban)
}
