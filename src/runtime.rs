//! Time, locks and background work.

pub(crate) mod background;
pub(crate) mod clock;
pub(crate) mod sharded_arc;
pub(crate) mod sync;
