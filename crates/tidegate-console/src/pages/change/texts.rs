//! The texts of changes: what they do, the question before them, and the label of the button.

use super::form::ChangeForm;
use crate::changes::Verb;

/// Returns the title of the pages of a change.
pub(super) const fn title(verb: Verb) -> &'static str {
    match verb {
        Verb::Block => "Block a key",
        Verb::Unblock => "Unblock a key",
        Verb::Reset => "Reset a key",
        Verb::Override => "Give a key another quota",
        Verb::EndOverride => "End the override of a key",
        Verb::Switch => "Switch a gate",
        Verb::EndSwitch => "End the switch of a gate",
    }
}

/// Returns what the change does.
pub(super) const fn consequence(verb: Verb) -> &'static str {
    match verb {
        Verb::Block => "Every check of the key at this gate is denied until the block ends. Its usage stays.",
        Verb::Unblock => {
            "Lifts the block, and removes the denials that count towards a ban. The usage stays."
        }
        Verb::Reset => {
            "Removes the usage, the holds, the counted denials and the block of the key at this gate."
        }
        Verb::Override => "The key has this quota at the gate, in the whole fleet, until the override ends.",
        Verb::EndOverride => "The key has the gate's own quota again.",
        Verb::Switch => "Applies to all keys of the gate, in the whole fleet.",
        Verb::EndSwitch => "The gate follows its own quota again.",
    }
}

/// Returns the label of the button: what it does.
pub(super) fn button(verb: Verb, values: &ChangeForm) -> String {
    let gate = values.shown_gate();
    match (verb, values.get("to").trim()) {
        (Verb::Block, _) => format!("Block the key at {gate}"),
        (Verb::Unblock, _) => format!("Unblock the key at {gate}"),
        (Verb::Reset, _) => format!("Reset the key at {gate}"),
        (Verb::Override, _) => format!("Give the key this quota at {gate}"),
        (Verb::EndOverride, _) => format!("End the override at {gate}"),
        (Verb::Switch, "closed") => format!("Deny all checks of {gate}"),
        (Verb::Switch, "open") => format!("Admit all checks of {gate}"),
        (Verb::Switch, _) => format!("Deny nothing at {gate}"),
        (Verb::EndSwitch, _) => format!("End the switch of {gate}"),
    }
}

/// Returns the question before the change.
pub(super) fn question(verb: Verb, values: &ChangeForm, detail: &str) -> String {
    let (key, gate) = (values.shown_key(), values.shown_gate());
    match verb {
        Verb::Block => format!("Block {key} at {gate} {detail}?"),
        Verb::Unblock => format!("Unblock {key} at {gate}?"),
        Verb::Reset => format!("Reset {key} at {gate}?"),
        Verb::Override => format!("Give {key} at {gate} the quota {detail}?"),
        Verb::EndOverride => format!("Give {key} at {gate} the gate's own quota again?"),
        Verb::Switch => format!("Switch {gate} {detail}?"),
        Verb::EndSwitch => format!("End the switch of {gate}?"),
    }
}
