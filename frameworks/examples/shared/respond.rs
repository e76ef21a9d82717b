//! A handler behind a limit.

use tidegate_http::RateLimitLayer;
use tidegate_http::http::Response;
use tidegate_http::http::request::Parts;

/// Calls the handler if the limit admits the request. Either response has the headers that report the limit. The charge
/// is settled before the response is sent, so it cannot depend on the body.
pub(super) async fn respond(
    limit: &RateLimitLayer,
    head: &Parts,
    handler: impl Future<Output = Response<String>>,
) -> Response<String> {
    match limit.admit(head).await {
        Ok(admitted) => {
            let (head, body) = handler.await.into_parts();
            let (head, _) = admitted.respond(Response::from_parts(head, String::new())).await.into_parts();
            Response::from_parts(head, body)
        }
        Err(rejection) => rejection.response_with_headers(head),
    }
}
