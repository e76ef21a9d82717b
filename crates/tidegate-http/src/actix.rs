//! actix-web: [`RateLimitLayer`] is also a middleware of actix-web 4 (feature `actix`), with all that it has in
//! front of tower services.
//!
//! ```
//! use actix_web::{App, HttpServer, web};
//! use tidegate::{Decision, Limiter, Quota, Rate};
//! use tidegate_http::{ClientIp, Key, RateLimitLayer};
//!
//! async fn hello(decision: web::ReqData<Decision>) -> String {
//!     format!("{} requests left\n", decision.remaining())
//! }
//!
//! # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
//! let api = Limiter::open("redis://127.0.0.1:6379")?.gate("api", Quota::token_bucket(5, Rate::per_minute(30)));
//! let limit = RateLimitLayer::new(api, Key::client_ip(ClientIp::peer()));
//! HttpServer::new(move || App::new().route("/", web::get().to(hello)).wrap(limit.clone()))
//!     .bind("127.0.0.1:3000")?
//!     .run()
//!     .await?;
//! # Ok(()) }
//! ```
//!
//! All workers share the layer: build it outside of the closure of `HttpServer::new`, and clone it inside.
//!
//! # Keys and closures
//!
//! They read the head of the request in the types of `http` 1, which [`crate::http`] re-exports, as with all
//! frameworks. actix-web itself has the types of `http` 0.2.
//!
//! - The peer's address is that of the connection, unless an earlier middleware inserts a
//!   [`PeerAddr`]. actix-web's `realip_remote_addr` trusts any client, so it is not read: declare
//!   proxies with [`ClientIp`](crate::ClientIp).
//! - [`Key::path_template`](crate::Key::path_template) is the pattern of the resource, such as `/users/{id}`. In front of
//!   the whole `App`, it is that of the path, whose slashes may be normalized. If guards choose between scopes of one
//!   path, wrap the scopes or resources. A middleware that rewrites the path otherwise has to run first: wrap it after
//!   this one.
//! - Of the extensions of actix-web's request, they see those that [`RateLimitLayer::actix_extension`] names.
//!
//! # Handlers
//!
//! `web::ReqData<Decision>` extracts the binding gate's decision, and likewise `AllDecision` and `RulesDecision`.
//! `Option<web::ReqData<Decision>>` is for handlers that also receive requests without a decision.
//! [`Usage`](crate::Usage) and [`RequestPermits`](crate::RequestPermits) are extractors. A
//! [`Rejection`](crate::Rejection) is a responder and an error. A handler without the middleware in front of it decides
//! with [`RateLimitLayer::admit_actix`].
//!
//! # Other middlewares
//!
//! The last `wrap` of an `App` runs first. Wrap the middleware that authenticates, and that for CORS, after this
//! one: a preflight has no credentials, and is then answered before it is counted.
//!
//! The error of an inner middleware stays that error. Its response gets the headers that report the limits, and its
//! status determines the [`Charge`](crate::Charge), which does not see the error's headers and body.
//!
//! # Responses
//!
//! - Bodies have no trailers, so [`Charge::trailers`](crate::Charge::trailers) leaves the taken units charged.
//! - The body of an upgraded connection is its stream, so permits are held until that ends.
//! - Over HTTP/1, actix-web polls the body of a response to HEAD to its end, and sends nothing of it: permits are held
//!   until then, and [`Charge::bytes`](crate::Charge::bytes) counts it. Over HTTP/2, it drops the body.
//! - Over HTTP/2, the handler of a client that has left runs to its end, with its permits and its place in the wait queue.
//! - By default, actix-web notices that a client has left only when it writes to it. Over HTTP/1, with
//!   `HttpServer::h1_allow_half_closed(false)`, it drops the request at once, as hyper does: permits are released
//!   and the wait queue is left then.

mod convert;
mod extract;

use std::fmt;
use std::future::{Ready, ready};
use std::rc::Rc;
use std::sync::Arc;

use actix_web::body::{BodySize, MessageBody};
use actix_web::dev::{Extensions, Service, ServiceRequest, ServiceResponse, Transform, forward_ready};
use actix_web::http::{Method, Version};
use actix_web::{Error, HttpMessage, HttpRequest, HttpResponse};
use futures_util::future::LocalBoxFuture;
use http::StatusCode;
use http::request::Parts;
use tidegate::AllDecision;

use super::admission::Admission;
use super::admitted::Admitted;
use super::admitted_request::AdmittedRequest;
use super::body::ResponseBody;
use super::key::{PeerAddr, RoutePattern};
use super::layer::RateLimitLayer;
use super::response::reject;
use super::settings::{CopyExtension, LayerSettings};
use super::straight::Straight;
use crate::decide::decide;
use crate::usage::RequestExtensions;

/// # actix-web
impl RateLimitLayer {
    /// Copies the extension `T` of actix-web's request, so that keys and closures find it among the extensions of the
    /// request's head: a user that an earlier middleware has found, for example. Has no effect on other frameworks,
    /// where they see all extensions.
    ///
    /// Default: none is copied.
    ///
    /// ```
    /// use tidegate::{Limiter, Quota, Rate};
    /// use tidegate_http::{Key, RateLimitLayer};
    ///
    /// #[derive(Clone)]
    /// struct User { id: u64 }
    ///
    /// let gate = Limiter::in_memory().gate("api", Quota::token_bucket(5, Rate::per_second(5)));
    /// let limit = RateLimitLayer::new(gate, Key::extension(|user: &User| user.id)).actix_extension::<User>();
    /// # let _ = limit;
    /// ```
    #[must_use]
    pub fn actix_extension<T: Clone + Send + Sync + 'static>(self) -> Self {
        let copy: CopyExtension = |from, to| {
            if let Some(value) = from.find::<T>() {
                to.insert(value);
            }
        };
        self.set(|settings| settings.copied_extensions.push(copy))
    }

    /// Does the same as [`admit`](Self::admit), for a handler of actix-web. [`AdmittedRequest::respond_actix`] settles
    /// the charge. [`on_rejection`](Self::on_rejection) does not apply: the handler, or actix-web by `?`, responds to the
    /// rejection.
    ///
    /// Cancel safe: dropping the future releases permits, and refunds the units of a request that waits. A check in flight
    /// may have been charged, and stays charged.
    ///
    /// ```
    /// use actix_web::{Error, HttpRequest, HttpResponse, body::BoxBody, web};
    /// use tidegate_http::{RateLimitLayer, ResponseBody};
    ///
    /// async fn search(
    ///     limit: web::Data<RateLimitLayer>,
    ///     request: HttpRequest,
    /// ) -> Result<HttpResponse<ResponseBody<BoxBody>>, Error> {
    ///     let admitted = limit.admit_actix(&request).await?;
    ///     admitted.respond_actix(&request, HttpResponse::Ok().body("found")).await
    /// }
    /// # let _ = web::get().to(search);
    /// ```
    ///
    /// # Errors
    ///
    /// The [`Rejection`](crate::Rejection) of a request that the layer would reject: `error.as_error::<Rejection>()`.
    /// Its response is in JSON; as a responder, it can also be text. 400 for a request that `http` 1 does not accept.
    pub async fn admit_actix(&self, request: &HttpRequest) -> Result<AdmittedRequest, Error> {
        let parts = parts_of(&self.settings, request)?;
        let admitted = AdmittedRequest::new(&self.settings, &parts).await?;
        Ok(admitted.entered(&*request.extensions()))
    }
}

/// # actix-web
impl AdmittedRequest {
    /// Does the same as [`respond`](Self::respond), for a response of actix-web. `request` is the request that was
    /// admitted: its method and version determine whether the body is sent.
    ///
    /// # Errors
    ///
    /// 500 for a response that `http` 1 does not accept.
    pub async fn respond_actix<B: MessageBody>(
        self,
        request: &HttpRequest,
        response: HttpResponse<B>,
    ) -> Result<HttpResponse<ResponseBody<B>>, Error> {
        match self.admitted {
            Some(admitted) => respond(&self.settings, admitted, request, response).await,
            None => Ok(response.map_body(|_, body| ResponseBody::inner(body))),
        }
    }
}

impl<S, B> Transform<S, ServiceRequest> for RateLimitLayer
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<ResponseBody<B>>;
    type Error = Error;
    type Transform = RateLimit<S>;
    type InitError = ();
    type Future = Ready<Result<RateLimit<S>, ()>>;

    fn new_transform(&self, inner: S) -> Self::Future {
        ready(Ok(RateLimit { settings: self.settings.clone(), inner: Rc::new(inner) }))
    }
}

/// A service of actix-web behind rate limits, made by [`RateLimitLayer`].
pub struct RateLimit<S> {
    settings: Arc<LayerSettings>,
    inner: Rc<S>,
}

impl<S, B> Service<ServiceRequest> for RateLimit<S>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<ResponseBody<B>>;
    type Error = Error;
    type Future = LocalBoxFuture<'static, Result<Self::Response, Error>>;

    forward_ready!(inner);

    fn call(&self, request: ServiceRequest) -> Self::Future {
        Box::pin(handle(self.settings.clone(), self.inner.clone(), request))
    }
}

impl<S> fmt::Debug for RateLimit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").finish_non_exhaustive()
    }
}

/// Admits the request, calls the service, settles the charge and adds the headers.
async fn handle<S, B>(
    settings: Arc<LayerSettings>,
    inner: Rc<S>,
    request: ServiceRequest,
) -> Result<ServiceResponse<ResponseBody<B>>, Error>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error>,
    B: MessageBody,
{
    let parts = parts_of(&settings, request.request())?;
    let mut admitted = match decide(&settings, &parts).await.after_delay(&settings.headers).await {
        Admission::Straight(mut admitted) => {
            admitted.enter(&mut *request.extensions_mut());
            return match inner.call(request).await {
                Ok(response) => respond_straight(&settings, &admitted, response),
                Err(error) => Err(respond_with_error(&settings, Box::new((*admitted).into()), error).await),
            };
        }
        Admission::Undecided => {
            return Ok(inner.call(request).await?.map_body(|_, body| ResponseBody::inner(body)));
        }
        Admission::Admitted(admitted) => admitted,
        Admission::Rejected(rejection) => {
            let response = reject(&settings, parts, *rejection).await;
            return Ok(request.into_response(convert::response(response)?));
        }
    };
    admitted.enter(&mut *request.extensions_mut());
    match inner.call(request).await {
        Ok(response) => {
            let (request, response) = response.into_parts();
            let response = respond(&settings, admitted, &request, response).await?;
            Ok(ServiceResponse::new(request, response))
        }
        Err(error) => Err(respond_with_error(&settings, admitted, error).await),
    }
}

/// Returns the head of the request, as the settings of the layer read it.
fn parts_of(settings: &LayerSettings, request: &HttpRequest) -> Result<Parts, Error> {
    let mut parts = convert::request_head(request)?;
    let extensions = request.extensions();
    let accepted_from = || request.peer_addr().map(PeerAddr);
    if let Some(peer) = extensions.find().or_else(accepted_from) {
        parts.extensions.insert(peer);
    }
    // Says that an outer layer has admitted the request.
    if let Some(outer) = extensions.find::<AllDecision>() {
        parts.extensions.insert(outer);
    }
    if settings.reads_route()
        && let Some(pattern) = route_pattern(request)
    {
        parts.extensions.insert(RoutePattern(pattern));
    }
    for copy in &settings.copied_extensions {
        copy(&extensions, &mut parts.extensions);
    }
    Ok(parts)
}

/// Returns the pattern of the request's resource: that which the router has found, or of the path if it comes later.
fn route_pattern(request: &HttpRequest) -> Option<String> {
    // The path as the router sees it: `/%75sers/7` is a path of the resource `/users/{id}`.
    let path = request.match_info().as_str();
    let by_path = |path: &str| request.resource_map().match_pattern(path);
    // A middleware between this one and the router may normalize the path.
    let normalized = || {
        let segments: Vec<_> = path.split('/').filter(|segment| !segment.is_empty()).collect();
        let trimmed = format!("/{}", segments.join("/"));
        by_path(&trimmed).or_else(|| by_path(&format!("{trimmed}/")))
    };
    request.match_pattern().or_else(|| by_path(path)).or_else(normalized)
}

/// Adds the headers of a request whose charge is final.
fn respond_straight<B: MessageBody>(
    settings: &LayerSettings,
    admitted: &Straight,
    mut response: ServiceResponse<B>,
) -> Result<ServiceResponse<ResponseBody<B>>, Error> {
    let inner = response.response_mut();
    let mut extensions: http::Extensions = inner.extensions_mut().remove().unwrap_or_default();
    admitted.compare_charges(settings, &mut extensions);
    if !extensions.is_empty() {
        inner.extensions_mut().insert(extensions);
    }
    convert::write_report(inner.headers_mut(), |headers| admitted.report(settings.headers, headers))?;
    Ok(response.map_body(|_, body| ResponseBody::inner(body)))
}

/// Settles the charge by the response, adds the headers, and holds the permits until the end of the body.
async fn respond<B: MessageBody>(
    settings: &LayerSettings,
    mut admitted: Box<Admitted>,
    request: &HttpRequest,
    response: HttpResponse<B>,
) -> Result<HttpResponse<ResponseBody<B>>, Error> {
    let (mut response, body) = response.into_parts();
    let mut head = convert::response_head(response.status().as_u16(), response.headers())?;
    // What nested layers tell each other travels as one extension.
    head.extensions = response.extensions_mut().remove().unwrap_or_default();
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        // The time of a connection says nothing about the service.
        admitted.permits.disregard();
    }
    let at_end = admitted.settle(settings, &mut head).await;
    convert::write_report(response.headers_mut(), |headers| admitted.report(settings.headers, headers))?;
    if !head.extensions.is_empty() {
        response.extensions_mut().insert(head.extensions);
    }
    let (length, is_ended) = match body.size() {
        BodySize::None => (None, true),
        BodySize::Sized(length) => (Some(length), length == 0),
        BodySize::Stream => (None, false),
    };
    // Over HTTP/2, actix-web drops these bodies without polling them.
    let is_unread = request.version() == Version::HTTP_2
        && (request.method() == Method::HEAD || head.status == StatusCode::NO_CONTENT);
    let body = ResponseBody::finishing(body, at_end, length, is_ended || is_unread);
    Ok(response.set_body(body))
}

/// Settles the charge by the status of an error, and lets its response have the headers. The response is made
/// later: an outer middleware may handle the error.
async fn respond_with_error(
    settings: &LayerSettings,
    mut admitted: Box<Admitted>,
    mut error: Error,
) -> Error {
    // The response, if there will be one, is small. The charge may take a call to Redis.
    drop(std::mem::take(&mut admitted.permits));
    let status = error.as_response_error().status_code();
    let mut head = match convert::response_head(status.as_u16(), &Default::default()) {
        Ok(head) => head,
        Err(error) => return error,
    };
    let at_end = admitted.settle(settings, &mut head).await;
    drop(ResponseBody::finishing((), at_end, None, true));
    let headers = settings.headers;
    error.add_response_mapper(move |mut response| {
        // Header values that one version of `http` accepts, the other accepts too.
        let report = |reported: &mut _| admitted.report(headers, reported);
        let _ = convert::write_report(response.headers_mut(), report);
        response
    });
    error
}

impl RequestExtensions for Extensions {
    fn find<T: Clone + Send + Sync + 'static>(&self) -> Option<T> {
        self.get().cloned()
    }

    fn set<T: Clone + Send + Sync + 'static>(&mut self, value: T) {
        self.insert(value);
    }
}
