//! The layer and its builder methods.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use http_body::Body;
#[cfg(feature = "rules")]
use tidegate::Error;
use tidegate::Gate;
#[cfg(feature = "rules")]
use tidegate_rules::{Need, ReloadingRules};
use tower_layer::Layer;

use super::admitted_request::AdmittedRequest;
use super::body::{self, BoxError};
use super::charge::Charge;
#[cfg(feature = "rules")]
use super::descriptors::Descriptors;
use super::gate_rule::GateRule;
use super::headers::Headers;
use super::in_flight::is_ban_beside_permits;
use super::key::Key;
use super::missing_key::MissingKey;
use super::rejection::{OnClosed, Rejection};
use super::service::RateLimit;
#[cfg(feature = "rules")]
use super::settings::FileRules;
use super::settings::{LayerSettings, OnError};
use super::wait_queue::WaitQueue;

/// Checks gates before a request enters the service. See the [module docs](super).
///
/// Cheap to clone. Clones, and all services that they make, share the wait queue.
#[derive(Clone)]
pub struct RateLimitLayer {
    pub(super) settings: Arc<LayerSettings>,
}

/// # Rules
impl RateLimitLayer {
    /// Checks one gate for one unit per request.
    ///
    /// # Panics
    ///
    /// If the gate's name is invalid. As with the routes of a router, a mistake that is known when the layer is
    /// built ends the program at its start, not each request. [`Limiter::try_gate`](tidegate::Limiter::try_gate)
    /// returns an error instead, for names that are known only at run time.
    #[must_use]
    #[track_caller]
    pub fn new(gate: Gate, key: Key) -> Self {
        Self::of([GateRule::new(gate, key)])
    }

    /// Checks several rules, all or nothing in one atomic step. Their gates must belong to the same limiter.
    ///
    /// Rules of rates and of [in-flight limits](tidegate::Quota::in_flight) can be mixed: a request that one of them
    /// denies is charged nothing and holds nothing. [`RequestPermits`](crate::RequestPermits) tells how long a
    /// permit is held.
    ///
    /// # Panics
    ///
    /// If a gate's name is invalid, if the gates belong to different limiters, if one has a [ban](Gate::ban) and another
    /// an in-flight limit, or if there is no rule: such a layer would limit nothing.
    #[must_use]
    #[track_caller]
    pub fn of(rules: impl IntoIterator<Item = GateRule>) -> Self {
        let mut layer = Self::without_rules();
        for rule in rules {
            layer = layer.and_rule(rule);
        }
        assert!(!layer.settings.rules.is_empty(), "a RateLimitLayer needs a rule");
        layer
    }

    /// Checks rules chosen for each request, such as by the tier of its user. Without a rule, the request is
    /// admitted.
    ///
    /// ```
    /// use tidegate_http::{GateRule, Key, RateLimitLayer};
    /// use tidegate::{Limiter, Quota, Rate};
    ///
    /// let limiter = Limiter::in_memory();
    /// let free = limiter.gate("free", Quota::token_bucket(60, Rate::per_minute(60)));
    /// let free = GateRule::new(free, Key::header("x-api-key"));
    /// let pro = limiter.gate("pro", Quota::token_bucket(600, Rate::per_minute(600)));
    /// let pro = GateRule::new(pro, Key::header("x-api-key"));
    /// let layer = RateLimitLayer::choose(move |parts| {
    ///     let key = parts.headers.get("x-api-key");
    ///     let is_pro = key.is_some_and(|key| key.as_bytes().starts_with(b"pro-"));
    ///     [if is_pro { pro.clone() } else { free.clone() }]
    /// });
    /// ```
    #[must_use]
    pub fn choose<R>(choose: impl Fn(&Parts) -> R + Send + Sync + 'static) -> Self
    where
        R: IntoIterator<Item = GateRule>,
    {
        Self::lookup(move |parts| std::future::ready(choose(parts).into_iter().collect::<Vec<_>>()))
    }

    /// Does the same as [`choose`](Self::choose) with an asynchronous function. The function takes its inputs
    /// from the request, and its future finds the rules. The future should have a timeout.
    #[must_use]
    pub fn lookup<R, F>(lookup: impl Fn(&Parts) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = R> + Send + 'static,
        R: IntoIterator<Item = GateRule>,
    {
        Self::without_rules().set(|settings| {
            settings.chooser = Some(Arc::new(move |parts| {
                let rules = lookup(parts);
                Box::pin(async move { rules.await.into_iter().collect() })
            }));
        })
    }

    /// Checks rules from files that match the request's [descriptors](Descriptors). With
    /// [reloading](ReloadingRules) rules, each request is decided entirely under the rules that are active
    /// when it arrives.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tidegate::Limiter;
    /// use tidegate_http::RateLimitLayer;
    /// use tidegate_rules::Rules;
    ///
    /// let rules = Rules::parse("api.yaml", "
    /// domain: api
    /// rate_limits:
    ///   - actions: [{ request_headers: { header_name: x-api-key, descriptor_key: api_key } }]
    /// descriptors:
    ///   - { key: api_key, rate_limit: { unit: minute, requests_per_unit: 60 } }
    /// ")?;
    /// let layer = RateLimitLayer::with_rules(rules.bind(&Limiter::in_memory()), "api")?;
    /// # let _ = layer; Ok(()) }
    /// ```
    ///
    /// [Added](Self::and) gates are checked in the same step. The layer's [cost](Self::cost) sets the
    /// [hits](tidegate_rules::Descriptor::hits) of each descriptor. Under `charge: each`, a request that
    /// [waits](Self::wait) is charged by each limit once, when that limit admits it. It then waits for the
    /// other limits only; the limits that have admitted it do not prolong the wait. Rules in shadow mode are
    /// checked once. The service finds the [`RulesDecision`](tidegate_rules::RulesDecision) in the request's
    /// extensions.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if the rules have no such domain, if the domain does not define how requests
    /// become descriptors, if it names an extension that is not provided, or if it has rules in quota mode. A
    /// later version of reloading rules with such an error is rejected: the previous rules stay active.
    #[cfg(feature = "rules")]
    pub fn with_rules(
        rules: impl Into<ReloadingRules>,
        descriptors: impl Into<Descriptors>,
    ) -> Result<Self, Error> {
        let rules: ReloadingRules = rules.into();
        let descriptors: Arc<Descriptors> = Arc::new(descriptors.into());
        let required = descriptors.clone();
        let need: Arc<Need> = Arc::new(move |rules| required.check(rules));
        rules.require(&need)?;
        let limiter = rules.limits().limiter().clone();
        let file_rules = FileRules { rules, descriptors, needs: vec![need], limiter };
        Ok(Self::without_rules().set(|settings| settings.file_rules = Some(file_rules)))
    }

    /// Checks this gate too: either all gates admit a request, or none is charged.
    ///
    /// # Panics
    ///
    /// If the gate's name is invalid, if the gate belongs to a different limiter than the other gates, or if of it and
    /// another gate or rule, one has a [ban](Gate::ban) and the other an in-flight limit. A later version of reloading
    /// rules with such a rule is rejected.
    #[must_use]
    #[track_caller]
    pub fn and(self, gate: Gate, key: Key) -> Self {
        self.and_rule(GateRule::new(gate, key))
    }

    /// Does the same as [`and`](Self::and), with the options of a rule.
    ///
    /// # Panics
    ///
    /// As [`and`](Self::and).
    #[must_use]
    #[track_caller]
    pub fn and_rule(self, rule: GateRule) -> Self {
        self.ensure_usable(&rule.gate);
        #[cfg(feature = "rules")]
        let layer = self.with_rules_that_fit(&rule.gate);
        #[cfg(not(feature = "rules"))]
        let layer = self;
        layer.set(|settings| settings.rules.push(rule))
    }

    /// Panics if the rules from files cannot be decided together with this gate. Rejects later versions that cannot.
    #[cfg(feature = "rules")]
    #[track_caller]
    fn with_rules_that_fit(self, gate: &Gate) -> Self {
        let Some(FileRules { rules, descriptors, .. }) = &self.settings.file_rules else { return self };
        let (descriptors, gate) = (descriptors.clone(), gate.clone());
        let need: Arc<Need> = Arc::new(move |rules| descriptors.check_beside(&gate, rules));
        if let Err(error) = rules.require(&need) {
            panic!("a RateLimitLayer cannot use this gate: {error}");
        }
        self.set(|settings| settings.file_rules.iter_mut().for_each(|it| it.needs.push(need.clone())))
    }

    /// Panics for a gate with which each request would fail.
    #[track_caller]
    fn ensure_usable(&self, gate: &Gate) {
        if let Err(error) = gate.redis_key("") {
            panic!("a RateLimitLayer cannot use this gate: {error}");
        }
        assert!(
            !gate.charges_used(),
            "a RateLimitLayer checks a request before it uses units: use this gate without `charge_used`, and let the layer charge at the end of the response"
        );
        assert!(
            !self.settings.rules.iter().any(|other| is_ban_beside_permits(gate, &other.gate)),
            "a RateLimitLayer cannot decide a gate with a ban together with an in-flight limit, since a step that acquires permits counts no denials: use one layer for each"
        );
        let others = self.settings.rules.first().map(|other| other.gate.limiter());
        #[cfg(feature = "rules")]
        let others =
            others.or(self.settings.file_rules.as_ref().map(|file_rules| file_rules.limiter.clone()));
        assert!(
            others.is_none_or(|limiter| limiter.is_same(&gate.limiter())),
            "gates of one RateLimitLayer must belong to one limiter: use one layer per limiter"
        );
    }

    /// Sets the cost of a request for each rule without a cost of its own, except for in-flight limits: their
    /// units are slots, not bytes or tokens. See [`GateRule::cost`]. Rules from files that deny every request also deny
    /// one with cost 0.
    ///
    /// Default: 1.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.cost = Some(Arc::new(cost)))
    }

    /// Admits some requests without a check, such as health checks. Test only properties that clients cannot
    /// choose: otherwise any client can bypass the limit.
    ///
    /// Default: none.
    #[must_use]
    pub fn skip(self, skip: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.skip = Some(Arc::new(skip)))
    }

    /// Sets how to handle a request that lacks the key of a rule.
    ///
    /// Default: [`MissingKey::Reject`].
    #[must_use]
    pub fn missing_key(self, missing_key: MissingKey) -> Self {
        self.set(|settings| settings.missing_key = missing_key)
    }

    /// Sets how to handle a request that the limiter failed to decide.
    ///
    /// Default: [`OnError::Reject`].
    #[must_use]
    pub fn on_error(self, on_error: OnError) -> Self {
        self.set(|settings| settings.on_error = on_error)
    }

    /// Sets how to reject a request at a gate that an operator has closed.
    ///
    /// Default: [`OnClosed::Unavailable`].
    #[must_use]
    pub fn on_closed(self, on_closed: OnClosed) -> Self {
        self.set(|settings| settings.on_closed = on_closed)
    }
}

/// # Charges, headers and responses
impl RateLimitLayer {
    /// Sets how the response changes the charge. In-flight limits have none: their permits are released in any
    /// case.
    ///
    /// Default: [`Charge::always`].
    #[must_use]
    pub fn charge(self, charge: Charge) -> Self {
        self.set(|settings| settings.charge = charge)
    }

    /// Sets the headers that report the limits to the client.
    ///
    /// Default: [`Headers::new`].
    #[must_use]
    pub fn headers(self, headers: Headers) -> Self {
        self.set(|settings| settings.headers = headers)
    }

    /// Adds a link to rejections, by which clients find help or a contact, such as the page that documents the limits.
    ///
    /// Default: none.
    #[must_use]
    pub fn help(self, link: &str) -> Self {
        self.set(|settings| settings.help = Some(link.into()))
    }

    /// Holds a request that would be denied until it is admitted, for at most `max_wait`. At most
    /// `max_waiting` requests wait in this process. A request that is certain to wait longer is denied at once, as
    /// is one at a gate that an operator has closed.
    ///
    /// Requests that wait for the same key are admitted in the order of their arrival at this process, except
    /// for those whose checks are in flight at the same time: up to 64 while units are left. If `max_waiting` requests
    /// wait, keys share this number: the newest request of the longest queue is denied in
    /// favor of a key with a shorter queue. If no queue is longer, the new request is denied. A client that
    /// disconnects frees its permit at once.
    ///
    /// `max_wait` also bounds the [`delay`](tidegate::Decision::delay) of leaky buckets. Admitted requests that
    /// wait for their delay have `max_waiting` permits of their own. A request without one takes no slot of the
    /// bucket.
    ///
    /// A request denied by an in-flight limit waits for a permit. One that another request of this process releases
    /// is taken at once, others within a quarter of a second. Requests with several checks or
    /// [reserved slots](GateRule::reserve_for) poll, every 250 ms at the latest. A waiting request holds no permit
    /// and no unit. Routes with the same gate should share clones of one layer, and so its queue. While an admitted
    /// request waits for the delay of a leaky bucket, it holds its permits.
    ///
    /// Default: requests wait for that delay only.
    ///
    /// # Panics
    ///
    /// If `max_wait` or `max_waiting` is zero: no request could wait.
    #[must_use]
    #[track_caller]
    pub fn wait(self, max_wait: Duration, max_waiting: usize) -> Self {
        assert!(
            !max_wait.is_zero() && max_waiting > 0,
            "`wait({max_wait:?}, {max_waiting})` lets no request wait: use a time above zero and at least 1 \
             request, or leave `wait` out"
        );
        self.set(|settings| settings.wait_queue = Some(WaitQueue::new(max_wait, max_waiting)))
    }

    /// Sets the response to rejected requests, such as a cached or smaller response, or another error. The
    /// layer adds its headers to this response as to every other, and `Cache-Control: no-store` unless the
    /// response has a `Cache-Control` of its own: a cache must not keep it in place of the service's response. In front
    /// of each framework, it is a response of [`http`](crate::http).
    ///
    /// ```
    /// use http::Response;
    /// use tidegate_http::{Key, RateLimitLayer, Reason};
    /// use tidegate::{Limiter, Quota, Rate};
    ///
    /// let gate = Limiter::in_memory().gate("search", Quota::token_bucket(5, Rate::per_second(5)));
    /// let layer = RateLimitLayer::new(gate, Key::header("x-api-key"));
    /// let layer = layer.on_rejection(|parts, rejection| async move {
    ///     match rejection.reason() {
    ///         Reason::Denied(_) => Response::new("the most popular results".to_owned()),
    ///         _ => rejection.response(&parts),
    ///     }
    /// });
    /// ```
    #[must_use]
    pub fn on_rejection<F, B>(self, respond: impl Fn(Parts, Rejection) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        self.set(|settings| {
            settings.responder = Some(Arc::new(move |parts, rejection| {
                let response = respond(parts, rejection);
                Box::pin(async move { response.await.map(body::boxed) })
            }));
        })
    }

    /// Decides a request inside a handler, instead of in front of a service: for limits that depend on what the
    /// handler has read, for example. Waits as the layer does. [`AdmittedRequest::respond`] settles the charge.
    /// [`on_rejection`](Self::on_rejection) does not apply: the handler responds to the rejection.
    ///
    /// Cancel safe: dropping the future releases permits, and refunds the units of a request that waits. A check in flight
    /// may have been charged, and stays charged.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// use http::{Request, Response};
    /// use tidegate::{Limiter, Quota, Rate};
    /// use tidegate_http::{Key, RateLimitLayer};
    ///
    /// let gate = Limiter::in_memory().gate("search", Quota::token_bucket(1, Rate::per_minute(1)));
    /// let limit = RateLimitLayer::new(gate, Key::header("x-api-key"));
    /// let (parts, _) = Request::builder().header("x-api-key", "k1").body(()).unwrap().into_parts();
    ///
    /// let admitted = limit.admit(&parts).await.expect("the first request is admitted");
    /// let response = admitted.respond(Response::new("found".to_owned())).await;
    /// assert_eq!(response.headers()["x-ratelimit-remaining"], "0");
    ///
    /// let rejection = limit.admit(&parts).await.expect_err("the second request is rejected");
    /// let response = rejection.response_with_headers(&parts);
    /// assert_eq!(response.headers()["retry-after"], "60");
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The rejection of a request that the layer would reject. Respond with it, as above: `?` may convert it to an error
    /// to which the framework responds with 500.
    pub async fn admit(&self, request: &Parts) -> Result<AdmittedRequest, Rejection> {
        Ok(AdmittedRequest::new(&self.settings, request).await?.entered(&request.extensions))
    }

    fn without_rules() -> Self {
        Self { settings: Arc::default() }
    }

    pub(super) fn set(mut self, set: impl FnOnce(&mut LayerSettings)) -> Self {
        set(Arc::make_mut(&mut self.settings));
        self
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit::new(self.settings.clone(), inner)
    }
}

impl fmt::Debug for RateLimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("rules", &self.settings.rules).finish_non_exhaustive()
    }
}
