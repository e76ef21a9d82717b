//! The behavior of a layer in front of each framework that has an adapter: the same requests over real sockets get
//! the same responses.

pub(crate) mod actix;
pub(crate) mod app;
mod axum;
mod cases;
pub(crate) mod client;
mod hyper;

/// Runs these cases on the servers that one function starts.
macro_rules! on {
    ($module:ident, $serve:path, $($case:ident,)*) => {
        mod $module {
            use super::*;

            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() { cases::$case($serve).await })*
        }
    };
}

/// Runs each case on each framework. actix-web runs a handler over HTTP/2 to its end when its client has left, so the
/// cases of leaving clients are not for it.
macro_rules! on_each_framework {
    ([$($all:ident,)*], [$($leaving:ident,)*]) => {
        on!(on_axum, axum::serve, $($all,)* $($leaving,)*);
        on!(on_hyper, hyper::serve, $($all,)* $($leaving,)*);
        on!(on_actix, actix::serve, $($all,)* $($leaving,)*);
        on!(on_actix_http2, actix::serve_http2, $($all,)*);
    };
}

on_each_framework!(
    [
        requests_of_one_connection_are_counted_and_rejected_with_a_problem,
        connections_of_all_workers_share_one_limit,
        headers_of_both_spellings_report_the_limit,
        accept_selects_a_text_for_people,
        several_gates_are_charged_all_or_none,
        closure_and_lookup_choose_the_tier,
        cost_is_charged_and_one_above_the_limit_is_a_400_with_both,
        skipped_request_is_not_counted_and_has_no_decision,
        request_without_a_key_is_rejected_shared_or_skipped,
        preflight_without_a_key_is_rejected_unless_it_is_skipped,
        rejection_hook_responds_in_place_of_the_layer,
        charge_follows_the_status_of_the_response,
        charge_follows_the_usage_and_the_bytes_of_the_body,
        stream_is_sent_piece_by_piece,
        permit_is_held_until_the_body_has_ended,
        permit_is_released_when_a_handler_or_a_body_fails_or_panics,
        head_request_has_the_headers_without_a_body_and_releases_its_permit_at_the_end,
        rules_from_files_limit_requests,
        closed_gate_is_a_503,
        failure_policy_decides_without_redis,
        client_address_is_read_behind_trusted_proxies_only,
    ],
    [permit_is_released_when_the_client_leaves, request_waits_for_its_turn_in_a_bounded_queue,]
);
