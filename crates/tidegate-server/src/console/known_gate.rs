//! Whether the gate of a change is known, before the operator confirms it.

use std::time::Duration;

use http::StatusCode;
use tidegate::{Error, Override};
use tokio::time::timeout;

use super::gates::gate_of;
use crate::admin::{AdminState, ChangeFields, Problem};

/// The pages of keys that are searched for a state of the gate: 100,000 keys of the database.
const MAX_PAGES: usize = 100;
/// After this time, the gate counts as known: the change itself searches again.
const MAX_DURATION: Duration = Duration::from_secs(5);

/// Checks that a rule, an override or a state is of the gate.
///
/// # Errors
///
/// If none is, and the operator has not asked for the change of an unknown gate: its name is probably a mistake. Errors of
/// Redis are none, because the change itself reports them.
pub(super) async fn ensure(
    state: &AdminState,
    fields: &ChangeFields,
    overrides: Result<&[Override], &Error>,
) -> Result<(), Problem> {
    let gate = &*fields.gate;
    let is_overridden = |overrides: &[Override]| overrides.iter().any(|entry| gate_of(entry) == Some(gate));
    if fields.force.is_some() || state.has_rule(gate) || overrides.map_or(true, is_overridden) {
        return Ok(());
    }
    if let Some(inspector) = &state.inspector {
        let shapes = timeout(MAX_DURATION, inspector.gate_shapes(gate, MAX_PAGES)).await;
        if !matches!(shapes, Ok(Ok(shapes)) if shapes.is_empty()) {
            return Ok(());
        }
    }
    let why = format!(
        "no rule, override or state is of the gate {gate}; nothing changed. To change it anyway, tick the box below"
    );
    Err(Problem::new(StatusCode::CONFLICT, why))
}
