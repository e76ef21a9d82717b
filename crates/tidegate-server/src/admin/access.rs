//! The access to the admin port.
//!
//! A handler states its right by an argument: [`Viewer`] reads, [`Operator`] changes, [`Form`] is a form whose CSRF
//! token is right. [`guard`] runs before all handlers: it finds the identity once, and rejects requests of foreign
//! pages.

mod attempts;
mod control;
mod extract;
mod guard;
mod identity;
mod login;
mod rejection;
mod sessions;
mod tokens;

pub(super) use self::control::{Access, AccessSettings};
pub use self::extract::{Form, Json, Operator, Viewer};
pub(super) use self::guard::guard;
pub use self::identity::{Identity, Role};
pub(super) use self::login::routes;
pub(super) use self::sessions::hex;
pub use self::tokens::{AdminTokens, AdminTokensError};
