//! TLS of the gRPC port, and the check of clients' certificates.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig,
    SignatureScheme,
};
use webpki::EndEntityCert;

/// The certificates of the gRPC port, from [`Server::tls`](crate::Server::tls).
///
/// Clones share the certificates: [`replace`](Self::replace) changes those of a running server.
#[derive(Clone, Debug)]
pub struct Tls {
    config: Arc<ArcSwap<ServerConfig>>,
}

/// The reason why [`Tls`] could not be made.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A text is not in PEM, or has no certificate or no key.
    #[error("{0} is not in PEM: {1}")]
    Pem(&'static str, rustls::pki_types::pem::Error),
    /// A certificate or key cannot be used.
    #[error("{0} cannot be used: {1}")]
    Unusable(&'static str, String),
}

/// The message: it is what the standard library prints of an error that `main` returns.
impl fmt::Debug for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Tls {
    /// Serves with this certificate chain and its private key, both in PEM. Admits every client.
    ///
    /// # Errors
    ///
    /// If one of them is not in PEM, or if they do not belong together.
    pub fn new(certificates: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        Self::build(certificates, key, None)
    }

    /// Admits only clients with a certificate that one of the CA certificates `client_ca`, in PEM, has signed. If
    /// there are `names`, the certificate must have one of them as a subject alternative name: a host name, a URI such
    /// as `spiffe://cluster/envoy`, or an IP address. Other clients fail in the handshake.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn mutual<N: Into<String>>(
        certificates: &[u8],
        key: &[u8],
        client_ca: &[u8],
        names: impl IntoIterator<Item = N>,
    ) -> Result<Self, TlsError> {
        let what = "the CA certificate of clients";
        let unusable = |error: &dyn std::fmt::Display| TlsError::Unusable(what, error.to_string());
        let mut roots = RootCertStore::empty();
        for certificate in read(what, client_ca)? {
            roots.add(certificate).map_err(|error| unusable(&error))?;
        }
        let inner = WebPkiClientVerifier::builder_with_provider(roots.into(), provider()).build();
        let inner = inner.map_err(|error| unusable(&error))?;
        let names = names.into_iter().map(Into::into).collect();
        Self::build(certificates, key, Some(Arc::new(NameVerifier { inner, names })))
    }

    fn build(
        certificates: &[u8],
        key: &[u8],
        clients: Option<Arc<dyn ClientCertVerifier>>,
    ) -> Result<Self, TlsError> {
        let what = "the certificate of the gRPC port";
        let unusable = |error: Error| TlsError::Unusable(what, error.to_string());
        let certificates = read(what, certificates)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| TlsError::Pem("the key of the gRPC port", error))?;
        let config = ServerConfig::builder_with_provider(provider());
        let config = config.with_safe_default_protocol_versions().map_err(unusable)?;
        let config = match clients {
            Some(verifier) => config.with_client_cert_verifier(verifier),
            None => config.with_no_client_auth(),
        };
        let mut config = config.with_single_cert(certificates, key).map_err(unusable)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self { config: Arc::new(ArcSwap::from_pointee(config)) })
    }

    /// Replaces the certificates, the CA of clients and the allowed names by those of `newer`, for new connections. Open
    /// connections are not closed: see [`Server::max_connection_age`](crate::Server::max_connection_age).
    pub fn replace(&self, newer: &Self) {
        self.config.store(newer.config());
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.config.load_full()
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn read(what: &'static str, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates = CertificateDer::pem_slice_iter(text).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| TlsError::Pem(what, error))?;
    match certificates.is_empty() {
        true => Err(TlsError::Unusable(what, "the file has no certificate".to_owned())),
        false => Ok(certificates),
    }
}

/// Verifies the chain of a client's certificate, then its names.
#[derive(Debug)]
struct NameVerifier {
    inner: Arc<dyn ClientCertVerifier>,
    /// Empty: every name is allowed.
    names: Vec<String>,
}

impl NameVerifier {
    fn is_allowed(&self, certificate: &CertificateDer<'_>) -> Result<bool, webpki::Error> {
        let certificate = EndEntityCert::try_from(certificate)?;
        let is_same = |allowed: &String| {
            certificate.valid_dns_names().any(|name| name.eq_ignore_ascii_case(allowed))
                || certificate.valid_uri_names().any(|name| name == allowed)
                || matches!(ServerName::try_from(&**allowed), Ok(name @ ServerName::IpAddress(_))
                    if certificate.verify_is_valid_for_subject_name(&name).is_ok())
        };
        Ok(self.names.is_empty() || self.names.iter().any(is_same))
    }
}

impl ClientCertVerifier for NameVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(certificate, intermediates, now)?;
        match self.is_allowed(certificate) {
            Ok(true) => Ok(verified),
            _ => Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
