//! TLS: trusted CAs, the client certificate, and advice on errors.

use redis::{Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, TlsCertificates};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::reply::words;
use crate::error::Error;

/// Certificates in PEM, as the caller passed them.
#[derive(Clone, Default)]
pub(crate) struct Tls {
    pub(crate) ca: Option<Vec<u8>>,
    pub(crate) client: Option<(Vec<u8>, Vec<u8>)>,
}

impl Tls {
    /// Adds the certificates to the address.
    pub(crate) fn apply(&self, info: ConnectionInfo) -> Result<ConnectionInfo, Error> {
        if self.ca.is_none() && self.client.is_none() {
            return Ok(info);
        }
        if !matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            return Err(Error::config("TLS certificates are set, but the URL does not begin with rediss://"));
        }
        if let Some(ca) = &self.ca {
            holds_a_certificate("tls_ca", ca)?;
        }
        if let Some((certificate, _)) = &self.client {
            holds_a_certificate("tls_client_certificate", certificate)?;
        }
        let client = self.client.clone();
        let certificates = TlsCertificates {
            client_tls: client.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key }),
            root_cert: self.ca.clone(),
        };
        let client = Client::build_with_tls(info, certificates).map_err(|error| {
            Error::config(format!("the TLS certificates cannot be used: {}", words(&error)))
        })?;
        Ok(client.get_connection_info().clone())
    }
}

/// Checks that a PEM text contains a certificate. redis-rs accepts a text without any, and then trusts no
/// server.
fn holds_a_certificate(setting: &str, pem: &[u8]) -> Result<(), Error> {
    match CertificateDer::pem_slice_iter(pem).next() {
        Some(Ok(_)) => Ok(()),
        _ => Err(Error::config(format!(
            "`{setting}` contains no certificate in PEM (-----BEGIN CERTIFICATE-----)"
        ))),
    }
}

/// Installs a crypto provider if there is none. rustls needs one per process, and panics if the choice is
/// ambiguous. Keeps a provider that the program has installed.
pub(super) fn choose_crypto() {
    if CryptoProvider::get_default().is_none() {
        // Another thread may have installed one meanwhile.
        let _ = ring::default_provider().install_default();
    }
}

/// Returns advice for an error message of rustls.
pub(super) fn advice(message: &str) -> Option<&'static str> {
    const ADVICE: [(&[&str], &str); 5] = [
        (
            &["UnknownIssuer", "CaUsedAsEndEntity", "BadSignature"],
            "no trusted CA has signed its certificate: pass that CA's certificate to `tls_ca`, or install it on this system",
        ),
        (&["expired", "not valid yet"], "renew its certificate, or correct this machine's clock"),
        (
            &["not valid for name", "NotValidForName"],
            "its certificate is for another name: use that name in the URL, or add this name to the certificate",
        ),
        (
            &[
                "CertificateRequired",
                "alert: BadCertificate",
                "alert: CertificateUnknown",
                "alert: UnknownCA",
                "alert: DecryptError",
                "alert: HandshakeFailure",
            ],
            "it requires a client certificate that it trusts: set `tls_client_certificate`",
        ),
        (&["InvalidContentType"], "it does not speak TLS on this port: use its TLS port, or redis://"),
    ];
    ADVICE
        .iter()
        .find(|(signs, _)| signs.iter().any(|sign| message.contains(sign)))
        .map(|(_, advice)| *advice)
}
