//! Decides the checks of one request together.

use std::time::Duration;

use futures_util::future::join_all;
use tidegate::{AllDecision, Check, Decision, Error, Source, Stopwatch, Switch};

/// Checks of one request that are decided together: all or nothing, or each independently.
pub(super) struct CheckGroup {
    pub(super) checks: Vec<Check>,
    /// For checks that are decided independently: the admitted ones, which a retry does not repeat.
    admitted: Option<Vec<Option<Admitted>>>,
}

/// An admission by one gate, while other gates still deny the request.
struct Admitted {
    decision: Decision,
    /// Measures the time since the decision.
    age: Stopwatch,
}

impl Admitted {
    /// Returns the decision with its times counted from now.
    fn decision(&self) -> Decision {
        self.decision.clone().aged(self.age.elapsed())
    }
}

impl CheckGroup {
    pub(super) fn all(checks: Vec<Check>) -> Self {
        Self { checks, admitted: None }
    }

    pub(super) fn each(checks: Vec<Check>) -> Self {
        let admitted = checks.iter().map(|_| None).collect();
        Self { checks, admitted: Some(admitted) }
    }

    /// Sets the longest delay that the request accepts at leaky buckets.
    pub(super) fn set_max_delay(&mut self, delay: Duration) {
        self.checks = self.checks.drain(..).map(|check| check.max_delay(delay)).collect();
    }

    pub(super) async fn decide(&mut self) -> Result<AllDecision, Error> {
        match (&*self.checks, &mut self.admitted) {
            // A single check can also use leases, the deny cache and batches.
            ([check], _) => Ok(AllDecision::of_each(vec![check.clone().check().await?])),
            ([first, ..], None) => first.limiter().check_all(&self.checks).await,
            ([first, ..], Some(admitted)) => {
                let limiter = first.limiter();
                let undecided: Vec<usize> =
                    (0..admitted.len()).filter(|at| admitted[*at].is_none()).collect();
                let decided = limiter.check_each(undecided.iter().map(|&at| &self.checks[at])).await;
                let mut decisions: Vec<_> =
                    admitted.iter().map(|admitted| admitted.as_ref().map(Admitted::decision)).collect();
                for (at, decision) in undecided.into_iter().zip(decided) {
                    let decision = decision?;
                    if decision.is_allowed() {
                        admitted[at] =
                            Some(Admitted { decision: decision.clone(), age: limiter.stopwatch() });
                    }
                    decisions[at] = Some(decision);
                }
                Ok(AllDecision::of_each(decisions.into_iter().flatten().collect()))
            }
            ([], _) => Err(Error::config("the request has no gate to check")),
        }
    }

    /// Returns the decision that [`decide`](Self::decide) would make, without charging.
    pub(super) async fn peek(&self) -> Result<AllDecision, Error> {
        let limiter = &self.checks[0].limiter();
        let Some(admitted) = &self.admitted else { return limiter.peek_all(&self.checks).await };
        let peeks = self.checks.iter().zip(admitted).map(|(check, admitted)| async move {
            match admitted {
                Some(admitted) => Ok(admitted.decision()),
                None => Ok(limiter.peek_all([check]).await?.binding().clone()),
            }
        });
        let decisions = join_all(peeks).await.into_iter().collect::<Result<_, Error>>()?;
        Ok(AllDecision::of_each(decisions))
    }

    /// Returns how long this denied request has to wait. Gates that have admitted it do not prolong the wait,
    /// nor do gates in shadow mode.
    pub(super) fn wait(&self, denied: &AllDecision) -> Wait {
        let mut wait = Wait::default();
        for (at, decision) in self.unsettled(denied) {
            wait.until_retry = wait.until_retry.max(decision.retry_after());
            // No unit becomes available at a gate that an operator has closed.
            if decision.source() == Source::Switch {
                wait.until_entry = Duration::MAX;
            }
            // At a leaky bucket, the request waits first to enter the bucket's queue and then for its turn.
            // Both together take at most the time in which the queue drains.
            if self.checks[at].quota().is_some_and(|quota| quota.has_queue()) {
                wait.until_entry = wait.until_entry.max(decision.reset_after());
            }
        }
        wait.until_entry = wait.until_entry.max(wait.until_retry);
        wait
    }

    /// Returns the index of the check that denied with the longest wait.
    pub(super) fn binding_index(&self, denied: &AllDecision) -> usize {
        let wait = |decision: &Decision| (!decision.is_allowed(), decision.retry_after());
        let binding = self.unsettled(denied).max_by_key(|(_, decision)| wait(decision));
        binding.map_or(0, |(at, _)| at)
    }

    /// Returns whether the operators' switches decide the request: a gate is closed, or none can deny. A gate
    /// that has admitted the request does not count.
    pub(super) fn is_decided_by_switches(&self) -> bool {
        let control = self.checks[0].limiter().control();
        let switch = |check: &Check| check.gate().and_then(|gate| control.current_switch(gate));
        let mut can_be_denied = false;
        let unadmitted = self.checks.iter().enumerate().filter(|(at, _)| !self.is_admitted(*at));
        for (_, check) in unadmitted {
            match switch(check) {
                Some(Switch::Closed) => return true,
                None => can_be_denied |= !check.is_shadow(),
                Some(_) => {}
            }
        }
        !can_be_denied
    }

    /// Returns the decisions that can prolong the wait, with their indexes.
    fn unsettled<'a>(&'a self, denied: &'a AllDecision) -> impl Iterator<Item = (usize, &'a Decision)> {
        let decisions = denied.each_alone().iter().enumerate();
        decisions.filter(|&(at, decision)| {
            !self.is_admitted(at) && !self.checks[at].is_shadow() && !decision.is_shadow()
        })
    }

    fn is_admitted(&self, at: usize) -> bool {
        self.admitted.as_ref().is_some_and(|admitted| admitted[at].is_some())
    }
}

/// The wait of a denied request, if no other request arrives.
#[derive(Default)]
pub(super) struct Wait {
    /// Until a retry is admitted.
    pub(super) until_retry: Duration,
    /// Until the request enters the service, at the latest.
    pub(super) until_entry: Duration,
}
