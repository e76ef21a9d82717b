//! Tests of the service and of its two ports.

mod browser;
mod console;
mod envoy;
mod examples;
mod faults;
mod fixture;
mod grpc;
mod json;
mod tls;
mod translation;
