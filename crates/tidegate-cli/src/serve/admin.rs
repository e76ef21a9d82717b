//! The admin port of the service.

use std::net::{Ipv4Addr, SocketAddr};

use serde_json::{Value, json};
use tidegate_server::{Admin, AdminTokens, AdminTokensError, Role, audit_json};

use crate::args::{AdminPort, Serve};
use crate::failure::Failure;
use crate::output::audit;

/// The address of the admin port of a demo.
const DEMO: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8082);

/// Returns the address of the admin port, if there is one.
pub(super) fn address(serve: &Serve) -> Option<SocketAddr> {
    serve.admin.admin_addr.or_else(|| serve.demo.then_some(DEMO))
}

/// Returns the settings of the admin port, if there is one. It shows `settings`, which are those of the program.
pub(super) fn port(serve: &Serve, settings: Value) -> Result<Option<Admin>, Failure> {
    let AdminPort { admin_tokens, admin_host, admin_behind_tls, metrics_public, .. } = &serve.admin;
    let Some(address) = address(serve) else {
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
        .shown_settings(settings)
        .on_audit(|entry, stored| {
            let mut entry = json!({ "audit": audit_json(entry) });
            if let Err(error) = stored {
                // The log has the only entry.
                entry["audit"]["not_stored"] = error.to_string().into();
            }
            audit(&entry, stored.is_ok());
        });
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

impl From<AdminTokensError> for Failure {
    fn from(error: AdminTokensError) -> Self {
        Self::usage(format!("{error} (--admin-tokens)"))
    }
}
