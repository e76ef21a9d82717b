//! The sender of a request, as the guard has found it.

use super::identity::Identity;
use crate::client::Client;

/// The sender of a request, among the extensions of the request.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) client: Client,
    pub(super) identity: Option<Identity>,
}
