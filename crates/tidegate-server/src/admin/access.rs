//! The access to the admin port.
//!
//! A handler states its right by an argument: [`Viewer`] reads, [`Operator`] changes, [`Form`] is a form whose CSRF
//! token is right. [`guard`] runs before all handlers: it finds the identity once, and rejects requests of foreign
//! pages.

mod attempts;
mod caller;
mod control;
mod cookie;
mod csrf;
mod extract;
mod guard;
mod identity;
mod login;
mod next_page;
mod rejected_logins;
mod rejection;
mod secret;
mod sessions;
mod tokens;

pub(crate) use self::control::{Access, AccessSettings};
pub(crate) use self::extract::{Form, Json, Operator, Viewer};
pub(crate) use self::guard::guard;
pub use self::identity::Role;
pub(crate) use self::identity::{Identity, csrf_token};
pub(crate) use self::login::routes;
pub(super) use self::secret::hex;
pub use self::tokens::{AdminTokens, AdminTokensError};
