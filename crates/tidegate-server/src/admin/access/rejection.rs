//! The responses to requests that may not do what they ask for.

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{HeaderValue, WWW_AUTHENTICATE};

use super::identity::Role;
use crate::for_clients::whole_seconds;
use crate::problem::Problem;

/// The reason why a request is rejected.
#[derive(Debug)]
pub(crate) enum Rejection {
    /// The `Host` of the request is none of the port's names.
    UnknownHost,
    /// A page of another site has made the request.
    ForeignOrigin,
    /// The request has no token and no session.
    NoIdentity {
        /// Whether the port has a login.
        has_login: bool,
    },
    /// The header `Authorization` is not one line of the scheme `Bearer`.
    NoBearer,
    WrongToken,
    /// The client has sent too many wrong tokens, and may try again after this time.
    TooManyAttempts(Duration),
    /// The identity has not this role.
    NotAllowed(Role),
    WrongCsrfToken,
    /// The body does not have the type that the handler expects.
    Body(StatusCode, String),
}

impl Rejection {
    fn status(&self) -> StatusCode {
        match self {
            Self::UnknownHost => StatusCode::MISDIRECTED_REQUEST,
            Self::ForeignOrigin | Self::NotAllowed(_) | Self::WrongCsrfToken => StatusCode::FORBIDDEN,
            Self::NoIdentity { .. } | Self::NoBearer | Self::WrongToken => StatusCode::UNAUTHORIZED,
            Self::TooManyAttempts(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Body(status, _) => *status,
        }
    }

    pub(super) fn detail(&self) -> String {
        match self {
            Self::UnknownHost => "the Host of the request is neither an address, nor localhost, nor a name of the \
                                  setting --admin-host: use an address, or add the name there"
                .to_owned(),
            Self::ForeignOrigin => {
                "a page of another site has sent this request: repeat it on a page of this port. Behind a proxy that \
                 changes the Host header, add the name that browsers use to the setting --admin-host"
                    .to_owned()
            }
            Self::NoIdentity { has_login: false } => {
                "this page needs a token: send `Authorization: Bearer TOKEN`".to_owned()
            }
            Self::NoIdentity { has_login: true } => {
                "this page needs a token: log in at /login, or send `Authorization: Bearer TOKEN`".to_owned()
            }
            Self::NoBearer => "send `Authorization: Bearer TOKEN`, once, and no other scheme".to_owned(),
            Self::WrongToken => "the token is wrong: see the file of --admin-tokens".to_owned(),
            Self::TooManyAttempts(wait) => {
                format!("too many wrong tokens from this address: try again in {} s", whole_seconds(*wait))
            }
            Self::NotAllowed(role) => format!("this needs a token with the role `{}`", role.as_str()),
            Self::WrongCsrfToken => {
                "the form is not of this session: load the page again, and repeat the change".to_owned()
            }
            Self::Body(_, text) => text.clone(),
        }
    }
}

impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        let status = self.status();
        let mut problem = Problem::new(status, self.detail());
        if let Self::TooManyAttempts(wait) = self {
            problem.retry_after = Some(wait);
        }
        let mut response = problem.into_response();
        if status == StatusCode::UNAUTHORIZED {
            let challenge = HeaderValue::from_static("Bearer realm=\"tidegate admin\"");
            response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        }
        response
    }
}
