//! What the overview is made from.

use tidegate::Override;

use crate::console::catalog::Catalog;
use crate::console::figures::NodeLoad;
use crate::console::hour::Hour;

/// The readings from which the overview is made.
pub(in crate::console) struct Readings<'r> {
    pub(in crate::console) hour: Result<&'r Hour, &'r str>,
    /// `None` if they cannot be read.
    pub(in crate::console) overrides: Option<&'r [Override]>,
    pub(in crate::console) catalog: &'r Catalog,
    /// Whether the circuit breaker of this process is open; `None` if Redis answers it.
    pub(in crate::console) own_breaker: Option<bool>,
    /// The message of an error.
    pub(in crate::console) redis: Result<Vec<NodeLoad>, String>,
}
