//! Connections over TLS, with generated certificates and beside another user of rustls.

use std::net::TcpListener;
use std::path::PathBuf;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use tidegate::{Builder, Limiter, OnFailure, Quota};
use tidegate_testkit::{Sentinels, Server};

use crate::support::fixture::{HOUR, PATIENCE, calls, namespace, soon};

type Ca = CertifiedIssuer<'static, KeyPair>;

/// A certificate and its key, in PEM.
type Pair = (String, String);

fn ca() -> Ca {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, "tidegate's CA");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Returns a certificate for a host name or an address, signed by `ca`.
fn signed(ca: &Ca, name: &str, until: i32) -> Pair {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    // A certificate whose subject equals that of its CA would look self-signed.
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(until, 1, 1);
    (params.signed_by(&key, &**ca).unwrap().pem(), key.serialize_pem())
}

/// A certificate, its key and the CA, in a temporary folder that is removed on drop.
struct Files(PathBuf);

impl Files {
    fn new(ca: &Ca, (certificate, key): &Pair) -> Self {
        let folder = std::env::temp_dir().join(namespace());
        std::fs::create_dir_all(&folder).unwrap();
        for (name, text) in [("certificate", certificate), ("key", key), ("ca", &ca.pem())] {
            std::fs::write(folder.join(name), text).unwrap();
        }
        Self(folder)
    }

    /// Returns the TLS options of redis-server.
    fn options(&self, auth_clients: &str) -> Vec<String> {
        let file = |name| self.0.join(name).to_str().unwrap().to_owned();
        let files = [("cert", "certificate"), ("key", "key"), ("ca-cert", "ca")];
        let files = files.map(|(option, name)| [format!("--tls-{option}-file"), file(name)]);
        let clients = ["--tls-auth-clients", auth_clients].map(str::to_owned);
        [clients].into_iter().chain(files).flatten().collect()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server with TLS on a separate port.
struct Tls {
    _server: Server,
    _files: Files,
    port: u16,
}

impl Tls {
    fn start(ca: &Ca, pair: &Pair, auth_clients: &str) -> Self {
        let files = Files::new(ca, pair);
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut options = files.options(auth_clients);
        options.extend(["--tls-port".to_owned(), port.to_string()]);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        Self { _server: Server::process(&options).unwrap(), _files: files, port }
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
async fn private_ca_and_client_certificate_work_beside_another_user_of_rustls() {
    // reqwest uses another crypto provider of rustls than tidegate does.
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
async fn certificate_mismatch_is_an_error_that_states_the_remedy() {
    let ca = ca();
    let server = Tls::start(&ca, &signed(&ca, "localhost", 2100), "yes");
    let trusting = || server.builder().tls_ca(ca.pem().as_bytes());

    let error = error_of(server.builder().tls_ca(self::ca().pem().as_bytes())).await;
    assert!(error.contains("no trusted CA has signed") && error.contains("`tls_ca`"), "{error}");
    let error = error_of(server.builder()).await;
    assert!(error.contains("no trusted CA has signed"), "{error}");
    let error = error_of(trusting()).await;
    assert!(error.contains("`tls_client_certificate`"), "{error}");
    let (certificate, key) = signed(&self::ca(), "client", 2100);
    let stranger = trusting().tls_client_certificate(certificate.as_bytes(), key.as_bytes());
    let error = error_of(stranger).await;
    assert!(error.contains("`tls_client_certificate`"), "{error}");
    let error = error_of(trusting().url(&format!("rediss://127.0.0.1:{}", server.port))).await;
    assert!(error.contains("for another name"), "{error}");

    let expired = Tls::start(&ca, &signed(&ca, "localhost", 2021), "no");
    let error = error_of(expired.builder().tls_ca(ca.pem().as_bytes())).await;
    assert!(error.contains("renew its certificate"), "{error}");
}

#[tokio::test]
async fn port_without_tls_is_an_error_that_states_the_cause() {
    let plain = Server::process(&[]).unwrap();
    let url = plain.url().replace("redis://127.0.0.1", "rediss://localhost");
    let error = error_of(Limiter::builder().url(&url).deadline(PATIENCE)).await;
    assert!(error.contains("speak TLS"), "{error}");
}

#[test]
fn unreadable_certificates_are_configuration_errors() {
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

/// Returns a certificate for 127.0.0.1, since servers refer to each other by address, and a builder that
/// trusts it.
fn by_address() -> (Files, Vec<String>, Builder) {
    let ca = ca();
    let files = Files::new(&ca, &signed(&ca, "127.0.0.1", 2100));
    // The servers use one certificate both to accept connections and to connect to each other.
    let options = files.options("optional");
    let builder = Limiter::builder().tls_ca(ca.pem().as_bytes()).deadline(PATIENCE);
    (files, options, builder.on_failure(OnFailure::Error).breaker(false).deny_cache(Duration::ZERO))
}

#[tokio::test]
async fn sentinels_and_their_servers_are_reached_over_tls_after_a_failover() {
    let (_files, options, builder) = by_address();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let mut sentinels = Sentinels::start_with_tls(&options).unwrap();
    let urls = sentinels.tls_urls();
    let limiter = builder.sentinel(urls.iter().map(String::as_str), sentinels.name()).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(1_000, HOUR));
    soon("Redis decides", async || gate.check("key").await.is_ok()).await;
    sentinels.kill_primary();
    soon("Redis decides again", async || gate.check("key").await.is_ok()).await;
    assert!(calls(sentinels.replica(), "evalsha") > 0);
}

#[cfg(feature = "cluster")]
#[tokio::test]
async fn nodes_of_a_cluster_are_reached_over_tls_after_a_failover() {
    let (_files, options, builder) = by_address();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let mut cluster = tidegate_testkit::Cluster::start_with_tls(&options).unwrap();
    cluster.prevent_failover().unwrap();
    let limiter = builder.cluster(&cluster.tls_urls().unwrap()[..1]).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(1_000, HOUR));
    let keys: Vec<String> = (0..300).map(|n| format!("user:{n}")).collect();
    for decision in gate.check_many(&keys).await {
        assert!(decision.unwrap().is_allowed());
    }
    for node in cluster.nodes().take(3) {
        assert!(calls(node, "evalsha") > 0, "not all primaries got calls");
    }
    let victim = cluster.nodes().next().unwrap().url().to_owned();
    cluster.allow_failover().unwrap();
    cluster.kill(&victim);
    soon("all decide again", async || gate.check_many(&keys).await.iter().all(Result::is_ok)).await;
}
