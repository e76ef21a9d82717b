//! Messages of a holder that Redis rejected because its memory is full.
//!
//! One message releases units and acquires others, and Redis rejects it as a whole. So it is sent again without its
//! acquires, by a script that also runs without free memory.

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::acquire::{Sender, message_of};
use super::reply::Reply;
use super::{CallKind, RedisStore};
use crate::connection::Deadline;
use crate::error::Error;
use crate::quota::Quota;
use crate::store::take::{Group, Item, Outcome};

/// A message without its acquires.
struct Report {
    /// The index of its group in the call.
    index: usize,
    group: Group,
}

impl RedisStore {
    /// Reports what the holder keeps of the keys of groups that failed for lack of memory. If that fails too, the group
    /// has the error of its report: see [`Error::is_out_of_memory`].
    pub(super) async fn report_kept(
        &self,
        groups: &[&Group],
        outcomes: &mut [Result<Outcome, Error>],
        deadline: Deadline,
    ) {
        let is_rejected = |index: usize| outcomes[index].as_ref().is_err_and(Error::is_out_of_memory);
        let rejected = groups.iter().enumerate().filter(|(index, _)| is_rejected(*index));
        let reports: Vec<Report> = rejected.flat_map(|(index, group)| reports_of(index, group)).collect();
        let calls = reports.chunk_by(|one, next| one.quota() == next.quota());
        let replies = join_all(calls.map(|reports| self.send_reports(reports, deadline))).await;
        for (report, reply) in reports.iter().zip(replies.into_iter().flatten()) {
            // A message without acquires is its own report.
            if reply.is_err() || groups[report.index].n == 0 {
                outcomes[report.index] = reply;
            }
        }
    }

    /// Sends reports about keys of one quota.
    async fn send_reports(&self, reports: &[Report], deadline: Deadline) -> Vec<Result<Outcome, Error>> {
        let groups: Vec<&Group> = reports.iter().map(|report| &report.group).collect();
        let kind = CallKind::Report(Sender::of(groups[0]), reports[0].quota());
        match self.try_call(kind, &groups, true, deadline).await {
            Ok(reply) => Reply::new(reply).outcomes(&groups),
            Err(error) => vec![Err(error); groups.len()],
        }
    }
}

impl Report {
    fn quota(&self) -> &Quota {
        &self.group.items[0].target.gate.quota
    }
}

fn reports_of(index: usize, group: &Group) -> impl Iterator<Item = Report> {
    let messages = group.items.iter().filter(|item| message_of(item).is_some());
    messages.map(move |item: &Item| Report {
        index,
        group: Group { items: SmallVec::from_buf([item.clone()]), n: 0 },
    })
}
