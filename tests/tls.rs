//! Over TLS, with certificates of our own; beside another user of rustls.

use std::net::TcpListener;
use std::path::PathBuf;

use harness::Server;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use tidegate::{Builder, Limiter, Quota};

use crate::support::fixture::{HOUR, PATIENCE, namespace};

type Ca = CertifiedIssuer<'static, KeyPair>;

/// A certificate and its key, in PEM.
type Pair = (String, String);

fn ca() -> Ca {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, "tidegate's CA");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn signed(ca: &Ca, name: &str, until: i32) -> Pair {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    // With the name of its CA it would look as if it had signed itself.
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(until, 1, 1);
    (params.signed_by(&key, &**ca).unwrap().pem(), key.serialize_pem())
}

/// A server with TLS on a port of its own, and the folder of its certificates.
struct Tls {
    _server: Server,
    folder: PathBuf,
    port: u16,
}

impl Drop for Tls {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Tls {
    fn start(ca: &Ca, (certificate, key): &Pair, wants_clients: &str) -> Self {
        let folder = std::env::temp_dir().join(namespace());
        std::fs::create_dir_all(&folder).unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        #[rustfmt::skip]
        let options = [
            "--tls-port", &port.to_string(), "--tls-auth-clients", wants_clients,
            "--tls-cert-file", &file("certificate", certificate), "--tls-key-file", &file("key", key),
            "--tls-ca-cert-file", &file("ca", &ca.pem()),
        ];
        Self { _server: Server::process(&options).unwrap(), folder, port }
    }

    fn builder(&self) -> Builder {
        Limiter::builder().url(&format!("rediss://localhost:{}", self.port)).deadline(PATIENCE)
    }
}

async fn error_of(builder: Builder) -> String {
    let error = builder.build().unwrap().ready().await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    error.to_string()
}

#[tokio::test]
async fn a_private_ca_and_a_client_certificate_beside_another_user_of_rustls() {
    // reqwest brings another crypto provider than ours into this program.
    let _client = reqwest::Client::builder().build().unwrap();
    let ca = ca();
    let server = Tls::start(&ca, &signed(&ca, "localhost", 2100), "yes");
    let (certificate, key) = signed(&ca, "client", 2100);
    let builder = server.builder().tls_ca(ca.pem().as_bytes());
    let builder = builder.tls_client_certificate(certificate.as_bytes(), key.as_bytes());
    let gate = builder.build().unwrap().gate("gate", Quota::fixed_window(5, HOUR));
    assert_eq!(gate.check("key").await.unwrap().remaining(), 4);
    let _client = reqwest::Client::builder().build().unwrap();
}

#[tokio::test]
async fn certificates_that_do_not_fit_are_errors_that_say_what_to_do() {
    let ca = ca();
    let server = Tls::start(&ca, &signed(&ca, "localhost", 2100), "yes");
    let trusting = || server.builder().tls_ca(ca.pem().as_bytes());

    let said = error_of(server.builder().tls_ca(self::ca().pem().as_bytes())).await;
    assert!(said.contains("no CA that is trusted here") && said.contains("`tls_ca`"), "{said}");
    let said = error_of(server.builder()).await;
    assert!(said.contains("no CA that is trusted here"), "{said}");
    let said = error_of(trusting()).await;
    assert!(said.contains("`tls_client_certificate`"), "{said}");
    let (certificate, key) = signed(&self::ca(), "client", 2100);
    let stranger = trusting().tls_client_certificate(certificate.as_bytes(), key.as_bytes());
    let said = error_of(stranger).await;
    assert!(said.contains("`tls_client_certificate`"), "{said}");
    let said = error_of(trusting().url(&format!("rediss://127.0.0.1:{}", server.port))).await;
    assert!(said.contains("for another name"), "{said}");

    let expired = Tls::start(&ca, &signed(&ca, "localhost", 2021), "no");
    let said = error_of(expired.builder().tls_ca(ca.pem().as_bytes())).await;
    assert!(said.contains("renew its certificate"), "{said}");
}

#[tokio::test]
async fn a_port_without_tls_is_an_error_that_says_so() {
    let plain = Server::process(&[]).unwrap();
    let url = plain.url().replace("redis://127.0.0.1", "rediss://localhost");
    let said = error_of(Limiter::builder().url(&url).deadline(PATIENCE)).await;
    assert!(said.contains("speak TLS"), "{said}");
}

#[test]
fn certificates_that_cannot_be_read_are_errors_of_the_settings() {
    let builder = || Limiter::builder().url("rediss://localhost");
    let (certificate, key) = signed(&ca(), "client", 2100);
    for (builder, words) in [
        (builder().tls_ca(b"nothing"), "`tls_ca`"),
        (builder().tls_client_certificate(b"nothing", key.as_bytes()), "`tls_client_certificate`"),
        (builder().tls_client_certificate(certificate.as_bytes(), b"nothing"), "cannot be used"),
        (builder().url("redis://localhost").tls_ca(certificate.as_bytes()), "rediss://"),
    ] {
        let error = builder.build().unwrap_err();
        assert!(error.is_config() && error.to_string().contains(words), "{error}");
    }
}
