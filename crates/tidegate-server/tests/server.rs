//! Tests of the service and of its ports.

mod admin_access;
mod admin_changes;
mod admin_pages;
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
