//! TLS on the gRPC port, and the names of clients.

use rcgen::string::Ia5String;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use tidegate_server::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tidegate_server::{Server, Tls, TlsError};
use tonic::Status;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use super::fixture::{Running, descriptor, in_memory, request};

const RULES: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: hour, requests_per_unit: 1000 }
";

type Ca = CertifiedIssuer<'static, KeyPair>;
/// A certificate and its key, in PEM.
type Pair = (String, String);

fn ca(name: &str) -> Ca {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn signed(ca: &Ca, names: &[SanType]) -> Pair {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, "a test");
    params.subject_alt_names = names.to_vec();
    (params.signed_by(&key, &**ca).unwrap().pem(), key.serialize_pem())
}

fn dns(name: &str) -> SanType {
    SanType::DnsName(Ia5String::try_from(name).unwrap())
}

fn uri(name: &str) -> SanType {
    SanType::URI(Ia5String::try_from(name).unwrap())
}

async fn channel(server: &Running, ca: &Ca, client: Option<&Pair>) -> Result<Channel, String> {
    let mut tls =
        ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca.pem())).domain_name("limits");
    if let Some((certificate, key)) = client {
        tls = tls.identity(Identity::from_pem(certificate, key));
    }
    let endpoint = Endpoint::try_from(format!("https://{}", server.grpc_addr)).unwrap();
    endpoint.tls_config(tls).unwrap().connect().await.map_err(|error| error.to_string())
}

async fn check(channel: Channel) -> Result<(), String> {
    let mut client = RateLimitServiceClient::new(channel);
    let decided = client.should_rate_limit(request([descriptor(&[("user", "ada")])])).await;
    decided.map(drop).map_err(|error: Status| error.to_string())
}

async fn ask(server: &Running, ca: &Ca, client: Option<&Pair>) -> Result<(), String> {
    check(channel(server, ca, client).await?).await
}

#[tokio::test]
async fn connections_are_encrypted_and_the_server_stops_in_order() {
    let ca = ca("servers");
    let (certificate, key) = signed(&ca, &[dns("limits")]);
    let tls = Tls::new(certificate.as_bytes(), key.as_bytes()).unwrap();
    let server = Server::new(in_memory(RULES)).tls(tls).drain_notice(std::time::Duration::ZERO);
    let server = Running::of(server).await;
    ask(&server, &ca, None).await.unwrap();
    let plain = Endpoint::try_from(format!("http://{}", server.grpc_addr)).unwrap().connect().await;
    if let Ok(channel) = plain {
        let mut client = RateLimitServiceClient::new(channel);
        assert!(client.should_rate_limit(request([descriptor(&[("user", "ada")])])).await.is_err());
    }
    assert!(server.stop().await);
}

#[tokio::test]
async fn only_clients_with_an_allowed_name_are_admitted() {
    let (servers, clients, others) = (ca("servers"), ca("clients"), ca("others"));
    let (certificate, key) = signed(&servers, &[dns("limits")]);
    let start = async |names: &[&str]| {
        let tls = Tls::mutual(
            certificate.as_bytes(),
            key.as_bytes(),
            clients.pem().as_bytes(),
            names.iter().copied(),
        );
        Running::of(Server::new(in_memory(RULES)).tls(tls.unwrap())).await
    };
    let any_name = start(&[]).await;
    let named = start(&["envoy.internal", "spiffe://fleet/envoy", "10.1.2.3"]).await;
    for (client, is_named) in [
        (signed(&clients, &[dns("ENVOY.internal")]), true),
        (signed(&clients, &[dns("other.internal"), uri("spiffe://fleet/envoy")]), true),
        (signed(&clients, &[SanType::IpAddress([10, 1, 2, 3].into())]), true),
        (signed(&clients, &[dns("other.internal")]), false),
        (signed(&clients, &[dns("x.envoy.internal")]), false),
        (signed(&clients, &[uri("spiffe://fleet/envoy/x")]), false),
        (signed(&clients, &[SanType::IpAddress([10, 1, 2, 4].into())]), false),
    ] {
        ask(&any_name, &servers, Some(&client)).await.unwrap();
        let asked = ask(&named, &servers, Some(&client)).await;
        assert_eq!(asked.is_ok(), is_named, "{asked:?}");
    }
    let foreign = signed(&others, &[dns("envoy.internal")]);
    for server in [&any_name, &named] {
        assert!(ask(server, &servers, Some(&foreign)).await.is_err(), "another CA");
        assert!(ask(server, &servers, None).await.is_err(), "no certificate");
    }
}

#[tokio::test]
async fn replaced_certificates_apply_to_new_connections() {
    let (old, new, clients) = (ca("old servers"), ca("new servers"), ca("clients"));
    let pair = |ca: &Ca| signed(ca, &[dns("limits")]);
    let (certificate, key) = pair(&old);
    let tls = Tls::new(certificate.as_bytes(), key.as_bytes()).unwrap();
    let server = Running::of(Server::new(in_memory(RULES)).tls(tls.clone())).await;
    let open = channel(&server, &old, None).await.unwrap();
    check(open.clone()).await.unwrap();
    ask(&server, &new, None).await.unwrap_err();

    let (certificate, key) = pair(&new);
    let ca = clients.pem();
    let newer = Tls::mutual(certificate.as_bytes(), key.as_bytes(), ca.as_bytes(), ["envoy"]).unwrap();
    tls.replace(&newer);
    ask(&server, &new, Some(&signed(&clients, &[dns("envoy")]))).await.unwrap();
    ask(&server, &new, None).await.unwrap_err();
    ask(&server, &old, None).await.unwrap_err();
    check(open).await.unwrap();
}

#[tokio::test]
async fn wrong_files_are_errors_that_name_the_file() {
    let ca = ca("servers");
    let (certificate, key) = signed(&ca, &[dns("limits")]);
    let (_, other_key) = signed(&ca, &[dns("limits")]);
    let text = |result: Result<Tls, TlsError>| result.unwrap_err().to_string();
    assert!(text(Tls::new(b"x", key.as_bytes())).contains("the certificate of the gRPC port"));
    assert!(text(Tls::new(certificate.as_bytes(), b"x")).contains("the key of the gRPC port is not in PEM"));
    assert!(text(Tls::new(certificate.as_bytes(), other_key.as_bytes())).contains("cannot be used"));
    let mutual = Tls::mutual(certificate.as_bytes(), key.as_bytes(), b"", ["x"]);
    assert!(text(mutual).contains("the CA certificate of clients"));
}
