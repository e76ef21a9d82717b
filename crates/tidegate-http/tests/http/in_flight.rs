//! In-flight limits in front of services: how long a request holds its permits.

mod fixture;
mod groups;
mod grpc;
mod guard;
mod headers;
mod outage;
mod permits;
mod polling;
mod priority;
mod rules;
mod sockets;
mod upgrades;
mod waiting;
