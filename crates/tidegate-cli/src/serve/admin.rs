//! The admin port of the service.

use std::net::{Ipv4Addr, SocketAddr};

use serde_json::{Value, json};
use tidegate_server::{Admin, AdminTokens, AdminTokensError, Role, audit_json};

use crate::args::{AdminPort, Serve};
use crate::failure::Failure;
use crate::output::audit;

/// The address of the admin port of a demo.
const DEMO: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8082);

/// Returns the settings of the admin port, if there is one.
pub(super) fn port(serve: &Serve) -> Result<Option<Admin>, Failure> {
    let AdminPort { admin_addr, admin_tokens, admin_host, admin_behind_tls, metrics_public } = &serve.admin;
    let Some(address) = admin_addr.or_else(|| serve.demo.then_some(DEMO)) else {
        return match admin_tokens.is_some() || *metrics_public {
            true => Err(Failure::usage(
                "--admin-tokens and --metrics-public need the admin port: add --admin-addr ADDRESS",
            )),
            false => Ok(None),
        };
    };
    let mut admin = Admin::new(address)
        .behind_tls(*admin_behind_tls)
        .public_metrics(*metrics_public)
        .shown_settings(shown(serve))
        .on_audit(|entry| audit(&json!({ "audit": audit_json(entry) })));
    for name in admin_host {
        admin = admin.host(name);
    }
    if serve.demo {
        // The limits of a demo are in the memory of this process, and nobody depends on them.
        admin = admin.open_role(Role::Operator);
    }
    Ok(Some(match admin_tokens {
        Some(path) => admin.tokens(AdminTokens::load(path)?),
        None => admin,
    }))
}

/// The settings that `/config` shows. None of them is a secret: of files, only the paths.
fn shown(serve: &Serve) -> Value {
    let Serve { connections, admin, .. } = serve;
    json!({
        "rules": serve.rules,
        "demo": serve.demo,
        "grpc_addr": serve.grpc_addr,
        "http_addr": serve.http_addr,
        "deadline_ms": u64::try_from(serve.deadline.as_millis()).unwrap_or(u64::MAX),
        "on_failure": format!("{:?}", serve.on_failure).to_lowercase(),
        "headers": format!("{:?}", serve.headers).to_lowercase(),
        "max_message_bytes": serve.max_message,
        "grpc_tls": connections.grpc_certificate.is_some(),
        "grpc_client_certificates": connections.grpc_client_ca.is_some(),
        "keepalive_s": connections.keepalive.as_secs(),
        "max_connection_age_s": connections.max_connection_age.as_secs(),
        "drain_notice_ms": u64::try_from(connections.drain_notice.as_millis()).unwrap_or(u64::MAX),
        "drain_ms": u64::try_from(connections.drain.as_millis()).unwrap_or(u64::MAX),
        "admin_tokens": admin.admin_tokens.is_some(),
        "metrics_public": admin.metrics_public,
    })
}

impl From<AdminTokensError> for Failure {
    fn from(error: AdminTokensError) -> Self {
        Self::usage(format!("{error} (--admin-tokens)"))
    }
}
