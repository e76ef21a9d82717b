//! The extensions of a request, of whichever framework.

use http::Extensions;

/// The extensions in which a framework hands values to handlers, and to layers nested in this one.
pub(super) trait RequestExtensions {
    fn find<T: Clone + Send + Sync + 'static>(&self) -> Option<T>;
    fn set<T: Clone + Send + Sync + 'static>(&mut self, value: T);
}

impl RequestExtensions for Extensions {
    fn find<T: Clone + Send + Sync + 'static>(&self) -> Option<T> {
        self.get().cloned()
    }

    fn set<T: Clone + Send + Sync + 'static>(&mut self, value: T) {
        self.insert(value);
    }
}
