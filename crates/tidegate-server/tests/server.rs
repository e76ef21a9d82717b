//! Tests of the service and of its ports.

mod admin_fixture;
mod admin_pages;
mod connections;
mod envoy;
mod examples;
mod faces;
mod faults;
mod fixture;
mod grpc;
mod json;
mod malformed;
mod pages;
mod prometheus;
mod raw;
mod reference_model;
mod slow_clients;
mod tls;
#[cfg(feature = "tracing")]
mod trace;
mod translation;
mod unfinished;
mod untaken;
mod v1;
