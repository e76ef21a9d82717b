//! The state of a fallback, which its callers and background jobs share.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use super::instances::Instances;
use super::last_known::LastKnown;
use super::publisher::Publisher;
use super::table::LocalTable;
use crate::connection::Deadline;
use crate::local::breaker::Breaker;
use crate::observe::observer::Observer;
use crate::observe::warning::RepeatedWarning;
use crate::observe::warning_sink::WarningSink;
use crate::quota::Quota;
use crate::quota::reference::Record;
use crate::runtime::background::{Background, JobSlot};
use crate::runtime::clock::Clock;
use crate::store::{Store, Target, Write};

pub(super) struct FallbackInner {
    pub(super) store: Arc<Store>,
    pub(super) breaker: Arc<Breaker>,
    pub(super) clock: Clock,
    pub(super) deadline: Duration,
    pub(super) observer: Option<Arc<dyn Observer>>,
    pub(super) warnings: WarningSink,
    pub(super) heartbeat_rejected: RepeatedWarning,
    pub(super) heartbeat_unanswered: RepeatedWarning,
    pub(super) instances: Instances,
    pub(super) publisher: Option<Publisher>,
    pub(super) last_known: LastKnown,
    pub(super) table: LocalTable,
    pub(super) background: Arc<Background>,
    pub(super) heartbeats: JobSlot,
    pub(super) reconciling: JobSlot,
    /// One round of reconciling at a time: two would charge the same units twice.
    pub(super) round: Mutex<()>,
}

impl FallbackInner {
    /// Called when the store accepted `units` with the stamp `store_stamp_us`, or will never accept them
    /// (`None`).
    pub(super) async fn settle(&self, target: &Target, units: u64, store_stamp_us: Option<u64>) {
        let note =
            |share: &Quota, record: &Record| self.last_known.note_record(target, share, record, &self.clock);
        let excess = self.table.settle(target, units, store_stamp_us, self.clock.now_us(), note);
        if excess > 0 {
            let give_back = Write::Refund { units: excess, stamp_us: store_stamp_us };
            // A lost refund admits too few.
            let _ = self.store.write(target, give_back, Deadline::new(self.deadline)).await;
        }
    }
}
