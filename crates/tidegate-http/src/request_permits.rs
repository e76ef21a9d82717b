//! The permits that one request holds.

#[cfg(feature = "axum")]
use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;

#[cfg(feature = "axum")]
use axum::extract::FromRequestParts;
use futures_util::future::select_all;
#[cfg(feature = "axum")]
use http::request::Parts;
use tidegate::Permit;

/// The permits of one request at in-flight limits, including those of outer layers.
///
/// The layer inserts it into the request's extensions. With the feature `axum` or `actix` it is an extractor, which never
/// fails: without an in-flight limit, it holds nothing. Clones share the permits. They are released when the
/// response body has ended, has failed or was dropped, and all clones are dropped.
///
/// A handler that upgrades the connection, to a websocket for example, moves a clone into the task that serves
/// the connection: a response with status 101 has no body, and the layer cannot see the end of the connection.
///
/// ```
/// use tidegate_http::RequestPermits;
///
/// fn upgrade(permits: RequestPermits) -> tokio::task::JoinHandle<()> {
///     tokio::spawn(async move {
///         // Serves the upgraded connection, until it has closed.
///         drop(permits);
///     })
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// # upgrade(RequestPermits::default()).await.unwrap();
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct RequestPermits(Option<Arc<LayerPermits>>);

/// The permits that one layer acquired.
#[derive(Debug)]
struct LayerPermits {
    permits: Vec<Permit>,
    outer: RequestPermits,
}

impl RequestPermits {
    pub(super) fn new(permits: Vec<Permit>) -> Self {
        let is_empty = permits.is_empty();
        let layer = || Arc::new(LayerPermits { permits, outer: Self::default() });
        Self((!is_empty).then(layer))
    }

    /// Adds the permits of outer layers. Called before the first clone is made.
    pub(super) fn add_outer(&mut self, outer: Option<&Self>) {
        let Some(outer) = outer else { return };
        match self.0.as_mut().map(Arc::get_mut) {
            Some(Some(layer)) => layer.outer = outer.clone(),
            Some(None) => {}
            None => *self = outer.clone(),
        }
    }

    /// Returns whether there are permits that no clone shares.
    pub(super) fn is_unshared(&self) -> bool {
        self.0.as_ref().is_some_and(|layer| Arc::strong_count(layer) == 1)
    }

    fn permits(&self) -> impl Iterator<Item = &Permit> {
        let layers = std::iter::successors(self.0.as_deref(), |layer| layer.outer.0.as_deref());
        layers.flat_map(|layer| &layer.permits)
    }

    /// Returns whether the request holds no permit: no in-flight limit applies to it, or the limiter failed
    /// under [`OnError::Admit`](crate::OnError::Admit).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.permits().next().is_none()
    }

    /// Returns whether the limit still counts all permits, by the clock of this process. A process that Redis
    /// did not hear from for too long loses them: see [`Permit::is_held`](tidegate::Permit::is_held). True
    /// if the request holds none.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.permits().all(Permit::is_held)
    }

    /// Marks the request as rejected by an overloaded service, for the adaptive limits that it counts for: see
    /// [`Permit::overloaded`](tidegate::Permit::overloaded).
    pub fn overloaded(&self) {
        self.permits().for_each(Permit::overloaded);
    }

    /// Excludes the request from the adaptive limits that it counts for, since its time says nothing: see
    /// [`Permit::disregard`](tidegate::Permit::disregard). The layer does so for upgraded connections.
    pub fn disregard(&self) {
        self.permits().for_each(Permit::disregard);
    }

    /// Completes when one of the permits has lapsed, for a handler that then stops its work. Never completes if
    /// the request holds none.
    ///
    /// Cancel safe.
    pub async fn lapsed(&self) {
        let lapses: Vec<_> = self.permits().map(|permit| Box::pin(permit.lapsed())).collect();
        if lapses.is_empty() {
            pending::<()>().await;
        }
        select_all(lapses).await;
    }
}

/// Never fails: without an in-flight limit, it holds nothing.
#[cfg(feature = "axum")]
impl<S: Send + Sync> FromRequestParts<S> for RequestPermits {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().cloned().unwrap_or_default())
    }
}
