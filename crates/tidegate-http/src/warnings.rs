//! Warnings of a layer: mistakes in the setup of a service, which the requests show.

use std::sync::atomic::{AtomicBool, Ordering};

use http::Method;
use http::request::Parts;
use tidegate::{Check, Error, Limiter, RepeatedWarning};

use super::key::TrustMistake;
use super::missing_key::{Absent, MissingKey};

/// The warnings of one layer, shared by its clones. A request without a mistake takes no lock and writes
/// nothing here.
#[derive(Debug)]
pub(super) struct LayerWarnings {
    peer_address_missing: RepeatedWarning,
    extension_missing: RepeatedWarning,
    options_without_key: RepeatedWarning,
    proxy_undeclared: RepeatedWarning,
    all_addresses_trusted: RepeatedWarning,
    gate_charged_twice: RepeatedWarning,
    cost_above_limit: RepeatedWarning,
    check_misconfigured: RepeatedWarning,
    upgrade_without_permits: RepeatedWarning,
    /// Whether the cost of a request was within the limits. Afterwards a higher cost is the client's mistake.
    has_affordable_request: AtomicBool,
}

impl Default for LayerWarnings {
    fn default() -> Self {
        Self {
            peer_address_missing: RepeatedWarning::new("peer-address-missing"),
            extension_missing: RepeatedWarning::new("extension-missing"),
            options_without_key: RepeatedWarning::new("options-without-key"),
            proxy_undeclared: RepeatedWarning::new("proxy-undeclared"),
            all_addresses_trusted: RepeatedWarning::new("all-addresses-trusted"),
            gate_charged_twice: RepeatedWarning::new("gate-charged-twice"),
            cost_above_limit: RepeatedWarning::new("cost-above-limit"),
            check_misconfigured: RepeatedWarning::new("check-misconfigured"),
            upgrade_without_permits: RepeatedWarning::new("upgrade-without-permits"),
            has_affordable_request: AtomicBool::new(false),
        }
    }
}

impl LayerWarnings {
    /// Reports the missing part of a key, if the service should have provided it.
    pub(super) fn missing_part(
        &self,
        limiter: &Limiter,
        parts: &Parts,
        absent: Absent,
        missing_key: MissingKey,
    ) {
        let is_rejected = missing_key == MissingKey::Reject;
        match absent {
            Absent::PeerAddress => limiter.warn(&self.peer_address_missing, || absent.to_string()),
            // Browsers send preflights without credentials, so the layers that authenticate do not find a user.
            _ if parts.method == Method::OPTIONS => {
                if is_rejected {
                    limiter.warn(&self.options_without_key, || {
                        "an OPTIONS request, such as a CORS preflight, lacks the key of a rule and is rejected: \
                         run the CORS layer before this one (in axum and actix-web, add it later, with \
                         `Router::layer` or `App::wrap`), or admit OPTIONS by `RateLimitLayer::skip`"
                            .to_owned()
                    });
                }
            }
            Absent::Extension { was_seen, .. } => {
                if is_rejected || !was_seen {
                    limiter.warn(&self.extension_missing, || absent.to_string());
                }
            }
            Absent::NotSent => {}
        }
    }

    pub(super) fn trust(&self, limiter: &Limiter, mistake: TrustMistake) {
        let warning = match mistake {
            TrustMistake::TrustsAll => &self.all_addresses_trusted,
            TrustMistake::UndeclaredProxy => &self.proxy_undeclared,
        };
        limiter.warn(warning, || mistake.to_string());
    }

    /// Reports a check that a nested layer made too.
    pub(super) fn charged_twice(&self, check: &Check) {
        check.limiter().warn(&self.gate_charged_twice, || {
            format!(
                "nested layers charge gate \"{}\" twice for the same key of one request: remove one of them, or \
                 give each its own gate",
                check.gate().unwrap_or_default()
            )
        });
    }

    /// Reports an upgraded connection that no in-flight limit counts.
    pub(super) fn upgrade_without_permits(&self, limiter: &Limiter) {
        limiter.warn(&self.upgrade_without_permits, || {
            "a handler upgraded a connection and kept no clone of the request's `RequestPermits`, so its permit is \
             released although the connection is open: move a clone into the task that serves the connection"
                .to_owned()
        });
    }

    pub(super) fn decided(&self) {
        if !self.has_affordable_request.load(Ordering::Relaxed) {
            self.has_affordable_request.store(true, Ordering::Relaxed);
        }
    }

    /// Reports the error of checks that requests of this layer cannot cause.
    pub(super) fn failed(&self, checks: &[Check], error: &Error) {
        let Some(limiter) = checks.first().map(Check::limiter) else { return };
        if error.is_config() {
            limiter.warn(&self.check_misconfigured, || {
                let gate = error.gate().map_or(String::new(), |gate| format!(" of gate \"{gate}\""));
                format!("a check{gate} can never be decided: {}", error.cause())
            });
        } else if error.is_over_capacity() && !self.has_affordable_request.load(Ordering::Relaxed) {
            limiter.warn(&self.cost_above_limit, || {
                let gate = error.gate().unwrap_or_default();
                let limit = error.cost_and_limit().map_or(0, |(_, limit)| limit);
                format!(
                    "each request so far costs more than the limit of gate \"{gate}\", {limit}, so none is \
                     admitted: raise the limit or lower the cost"
                )
            });
        }
    }
}
