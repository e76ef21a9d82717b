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

pub(crate) use self::control::{Access, AccessSettings};
pub(crate) use self::extract::{Form, Json, Operator, Viewer};
pub(crate) use self::guard::guard;
pub use self::identity::Role;
pub(crate) use self::identity::{Identity, csrf_token};
pub(crate) use self::login::routes;
pub(super) use self::sessions::hex;
pub use self::tokens::{AdminTokens, AdminTokensError};
