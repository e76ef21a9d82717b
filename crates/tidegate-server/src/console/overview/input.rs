//! What the overview is made from.

use tidegate::Override;

use crate::console::catalog::Catalog;
use crate::console::figures::NodeLoad;
use crate::console::hour::Hour;

/// The readings from which the overview is made.
pub(in crate::console) struct Readings<'r> {
    pub(in crate::console) hour: Result<&'r Hour, &'r str>,
    pub(in crate::console) overrides: &'r [Override],
    pub(in crate::console) catalog: &'r Catalog,
    /// The message of an error.
    pub(in crate::console) redis: Result<Vec<NodeLoad>, String>,
}
