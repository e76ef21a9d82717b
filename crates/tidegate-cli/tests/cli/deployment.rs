//! The files in `deploy`: their flags, ports and paths exist, and the examples run.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::program::{PATH, Program, Ran};
use super::serve::{http, soon};

/// The parts of the memory of a service, as docs/operate/serve.md lists them.
const BASE_BYTES: u64 = 32 << 20;
const GRPC_CONNECTION_BYTES: u64 = 28 << 10;
pub(crate) const HTTP_CONNECTION_BYTES: u64 = 24 << 10;

/// Returns the path of a file in `deploy`.
fn deployed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name)
}

pub(crate) fn read(name: &str) -> String {
    fs::read_to_string(deployed(name)).unwrap()
}

/// A folder that stands for `/etc/tidegate`, removed on drop.
struct Etc(PathBuf);

impl Etc {
    fn new(name: &str, settings: &str) -> Self {
        let this = Self(std::env::temp_dir().join(format!("tidegate-{}-etc-{name}", std::process::id())));
        fs::create_dir_all(this.0.join("rules")).unwrap();
        fs::write(this.0.join("serve.yaml"), this.moved(settings)).unwrap();
        fs::copy(deployed("envoy/rules.yaml"), this.0.join("rules/rules.yaml")).unwrap();
        this
    }

    /// Adds the tokens of the admin port, which a secret of Kubernetes contains.
    fn add_tokens(&self) {
        let tokens = self.0.join("admin/tokens");
        fs::create_dir_all(tokens.parent().unwrap()).unwrap();
        fs::write(&tokens, "prometheus viewer token:the-token-of-prometheus\n").unwrap();
        #[cfg(unix)]
        fs::set_permissions(&tokens, std::os::unix::fs::PermissionsExt::from_mode(0o440)).unwrap();
    }

    /// Returns a text with this folder instead of `/etc/tidegate`.
    fn moved(&self, text: &str) -> String {
        text.replace("/etc/tidegate", self.0.to_str().unwrap())
    }

    /// Returns the effective settings of a command line: names and values.
    fn settings(&self, args: &[&str], variables: &[(&str, &str)]) -> Vec<(String, Vec<String>)> {
        let args = args.iter().map(|arg| self.moved(arg));
        let mut command = Program::at("").command(args.chain(["--check".to_owned(), "--json".to_owned()]));
        command
            .env_remove("TIDEGATE_REDIS_URL")
            .env_remove("TIDEGATE_NAMESPACE")
            .envs(variables.iter().copied());
        let ran = Ran::of(&command.output().unwrap());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let output: Value = serde_json::from_str(&ran.out).unwrap();
        let texts = |value: &Value| {
            value.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
        };
        let settings = output["settings"].as_array().unwrap().iter();
        settings
            .map(|setting| (setting["name"].as_str().unwrap().to_owned(), texts(&setting["values"])))
            .collect()
    }
}

impl Drop for Etc {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn value(settings: &[(String, Vec<String>)], name: &str) -> String {
    settings.iter().find(|(of, _)| of == name).unwrap().1.join(" ")
}

fn port(settings: &[(String, Vec<String>)], name: &str) -> u64 {
    value(settings, name).rsplit(':').next().unwrap().parse().unwrap()
}

fn seconds(text: &str) -> f64 {
    text.trim_end_matches('s').parse().unwrap()
}

/// Returns the longest time that the end of the service takes.
fn end_seconds(settings: &[(String, Vec<String>)]) -> f64 {
    // With a Redis that does not answer: calls of operators' changes, with 5 s each, and the end of the limiter.
    let (changes, limiter) = (20.0, 6.0);
    seconds(&value(settings, "drain_notice")) + seconds(&value(settings, "drain")) + changes + limiter
}

/// Asserts that two health checks of the documented Envoy find out that the service stops, before its port closes.
fn assert_envoy_notices_the_end(settings: &[(String, Vec<String>)]) {
    let notice = seconds(&value(settings, "drain_notice"));
    let check = &documents("envoy/envoy.yaml")[0]["static_resources"]["clusters"][0]["health_checks"][0];
    // Of a cluster that has had no requests so far, Envoy checks the health by `no_traffic_interval`.
    for interval in ["interval", "no_traffic_interval"] {
        let interval = seconds(check[interval].as_str().unwrap_or_else(|| panic!("no {interval}")));
        assert!(notice >= 2.0 * interval, "{notice} s, with health checks each {interval} s");
    }
}

fn documents(name: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(&read(name)).unwrap()
}

fn of_kind<'d>(documents: &'d [Value], kind: &str) -> Vec<&'d Value> {
    documents.iter().filter(|document| document["kind"] == kind).collect()
}

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}

#[test]
fn manifests_agree_with_the_settings_and_with_each_other() {
    let documents = documents("kubernetes/tidegate.yaml");
    let [settings_map, rules_map] = of_kind(&documents, "ConfigMap")[..] else { panic!("two ConfigMaps") };
    let etc = Etc::new("kubernetes", settings_map["data"]["serve.yaml"].as_str().unwrap());
    for (name, text) in rules_map["data"].as_object().unwrap() {
        fs::write(etc.0.join("rules").join(name), text.as_str().unwrap()).unwrap();
    }
    fs::remove_file(etc.0.join("rules/rules.yaml")).unwrap();
    etc.add_tokens();
    let pod = &of_kind(&documents, "Deployment")[0]["spec"]["template"];
    let container = &pod["spec"]["containers"][0];
    // The variables of the image precede the file.
    let dockerfile = read("docker/Dockerfile");
    let variables = dockerfile.lines().find_map(|line| line.strip_prefix("ENV ")).unwrap();
    let variables: Vec<_> = variables.split(' ').map(|variable| variable.split_once('=').unwrap()).collect();
    let settings = etc.settings(&texts(&container["args"]), &variables);

    let ports = container["ports"].as_array().unwrap();
    let container_port =
        |name: &str| ports.iter().find(|port| port["name"] == name).unwrap()["containerPort"].as_u64();
    assert_eq!(container_port("grpc"), Some(port(&settings, "grpc_addr")));
    assert_eq!(container_port("http"), Some(port(&settings, "http_addr")));
    assert_eq!(container_port("admin"), Some(port(&settings, "admin_addr")));
    assert_eq!(value(&settings, "metrics_public"), "false", "each client needs a token");
    assert!(value(&settings, "grpc_addr").starts_with("0.0.0.0:"), "reachable from other pods");
    let pre_stop = container["lifecycle"]["preStop"]["sleep"]["seconds"].as_f64().unwrap();
    let grace = pod["spec"]["terminationGracePeriodSeconds"].as_f64().unwrap();
    assert!(grace > pre_stop + end_seconds(&settings), "{grace} s end before the service does");
    let number = |name: &str| value(&settings, name).parse::<u64>().unwrap();
    let connection = GRPC_CONNECTION_BYTES + HTTP_CONNECTION_BYTES;
    let memory = BASE_BYTES + number("max_connections") * connection + 2 * number("max_unfinished");
    let limit = container["resources"]["limits"]["memory"].as_str().unwrap().strip_suffix("Mi").unwrap();
    assert!(
        limit.parse::<u64>().unwrap() << 20 > memory,
        "{memory} bytes are above the limit of {limit} MiB"
    );
    assert_envoy_notices_the_end(&settings);
    // Envoy looks up the addresses of new replicas each 5 s, unless `dns_refresh_rate` is set.
    assert!(seconds(&value(&settings, "drain_notice")) > 5.0, "Envoy knows the new replicas");

    // Each mounted path is one that the settings name.
    let mounts = container["volumeMounts"].as_array().unwrap();
    let paths: BTreeSet<String> =
        mounts.iter().map(|mount| etc.moved(mount["mountPath"].as_str().unwrap())).collect();
    let config = etc.moved(texts(&container["args"])[2]);
    let tokens = value(&settings, "admin_tokens");
    let tokens_folder = tokens.strip_suffix("/tokens").unwrap().to_owned();
    assert_eq!(paths, BTreeSet::from([config, value(&settings, "rules"), tokens_folder]));
    let maps = of_kind(&documents, "ConfigMap").into_iter().map(|map| map["metadata"]["name"].clone());
    let volumes = pod["spec"]["volumes"].as_array().unwrap();
    let (secrets, volumes): (Vec<_>, Vec<_>) =
        volumes.iter().partition(|volume| volume["secret"].is_object());
    let volumes = volumes.iter().map(|volume| volume["configMap"]["name"].clone());
    assert_eq!(volumes.collect::<Vec<_>>(), maps.collect::<Vec<_>>());
    // The tokens are readable for the group of the process, and for nobody else.
    assert_eq!(secrets.len(), 1);
    assert!(read("kubernetes/tidegate.yaml").contains("secretName: tidegate-admin, defaultMode: 0440 }"));
    assert_eq!(pod["spec"]["securityContext"]["fsGroup"], pod["spec"]["securityContext"]["runAsGroup"]);

    let labels = &pod["metadata"]["labels"];
    let service = of_kind(&documents, "Service")[0];
    assert_eq!(service["spec"]["clusterIP"], "None");
    assert_eq!(&service["spec"]["selector"], labels);
    for port in service["spec"]["ports"].as_array().unwrap() {
        assert_eq!(port["port"].as_u64(), container_port(port["targetPort"].as_str().unwrap()));
    }
    let budget = of_kind(&documents, "PodDisruptionBudget")[0];
    for selector in [
        &of_kind(&documents, "Deployment")[0]["spec"]["selector"]["matchLabels"],
        &budget["spec"]["selector"]["matchLabels"],
        &of_kind(&documents, "NetworkPolicy")[0]["spec"]["podSelector"]["matchLabels"],
    ] {
        assert_eq!(selector, labels);
    }
}

#[test]
fn probes_of_the_manifests_are_answered() {
    let documents = documents("kubernetes/tidegate.yaml");
    let container = &of_kind(&documents, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0];
    let service = super::serve::Service::of({
        let mut command = Program::at("").command(["--json", "serve", "--demo"]);
        command.env("TIDEGATE_GRPC_ADDR", "127.0.0.1:0").env("TIDEGATE_HTTP_ADDR", "127.0.0.1:0");
        command
    });
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let path = container[probe]["httpGet"]["path"].as_str().unwrap();
        assert_eq!(container[probe]["httpGet"]["port"], "http");
        assert_eq!(super::serve::get(&service.http, path), 200, "{probe}");
    }
}

#[test]
fn documented_cluster_of_envoy_is_that_of_the_examples() {
    let example = read("envoy/envoy.yaml");
    let documented = read("../docs/operate/serve.md");
    for text in [&example, &documented] {
        assert_eq!(text.matches("health_checks:").count(), 1);
    }
    let line = example.lines().find(|line| line.contains("grpc_health_check")).unwrap().trim();
    assert!(documented.lines().any(|documented| documented.trim() == line), "{line}");
}

#[test]
fn systemd_unit_runs_valid_commands_and_waits_for_the_end() {
    let unit = read("systemd/tidegate.service");
    let field = |name: &str| {
        let line = unit.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
        line.unwrap_or_else(|| panic!("no {name}"))
    };
    let etc = Etc::new("systemd", &read("serve.yaml"));
    let start: Vec<&str> = field("ExecStart").split(' ').collect();
    assert_eq!(field("ExecStartPre"), format!("{} --check", field("ExecStart")));
    assert_eq!(start[0], "/usr/bin/tidegate");
    let settings = etc.settings(&start[1..], &[]);
    assert!(seconds(field("TimeoutStopSec")) > end_seconds(&settings));
    assert_envoy_notices_the_end(&settings);
    for name in ["DynamicUser", "NoNewPrivileges", "PrivateTmp", "MemoryDenyWriteExecute"] {
        assert_eq!(field(name), "yes");
    }
}

#[test]
fn dockerfile_and_compose_run_valid_commands() {
    let dockerfile = read("docker/Dockerfile");
    let line = |name: &str| {
        let mut lines = dockerfile.lines().filter_map(|line| line.strip_prefix(&format!("{name} ")));
        lines.next_back().unwrap_or_else(|| panic!("no {name}")).to_owned()
    };
    let list = |name: &str| -> Vec<String> { serde_json::from_str(&line(name)).unwrap() };
    assert_eq!(list("ENTRYPOINT"), ["/usr/bin/tidegate"]);
    assert!(!line("USER").starts_with('0') && line("USER") != "root");
    let environment = line("ENV");
    let variables: Vec<(&str, &str)> =
        environment.split(' ').map(|pair| pair.split_once('=').unwrap()).collect();
    // The file has no addresses of its own: those of a container are in its environment, which precedes it.
    let etc = Etc::new("docker", &read("serve.yaml"));
    let command = list("CMD");
    let settings = etc.settings(&command.iter().map(String::as_str).collect::<Vec<_>>(), &variables);
    let ports = format!("{} {}", port(&settings, "http_addr"), port(&settings, "grpc_addr"));
    assert_eq!(line("EXPOSE"), ports);

    let compose = &documents("compose/docker-compose.yml")[0]["services"];
    let tidegate = &compose["tidegate"];
    let own = tidegate["environment"].as_object().unwrap().iter();
    let own: Vec<(&str, &str)> = own.map(|(name, value)| (name.as_str(), value.as_str().unwrap())).collect();
    let settings = etc.settings(&texts(&tidegate["command"]), &[variables, own].concat());
    assert!(seconds(tidegate["stop_grace_period"].as_str().unwrap()) > end_seconds(&settings));
    assert_envoy_notices_the_end(&settings);
    assert_eq!(value(&settings, "redis"), "redis://redis:6379");
    assert_eq!(texts(&tidegate["ports"]), [format!("127.0.0.1:{0}:{0}", port(&settings, "http_addr"))]);
    // Envoy's configuration names the service and its port.
    let cluster = format!("address: tidegate, port_value: {}", port(&settings, "grpc_addr"));
    assert!(read("envoy/envoy.yaml").contains(&cluster));
    for service in ["tidegate", "envoy"] {
        for volume in texts(&compose[service]["volumes"]) {
            let file = deployed("compose").join(volume.split(':').next().unwrap());
            assert!(file.exists(), "{}", file.display());
        }
    }
}

#[test]
fn example_with_plain_processes_limits_requests_through_envoy() {
    // Another process can take the port meanwhile, but then the example fails at once.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let example = Command::new(deployed("envoy/run"))
        .env("TIDEGATE", PATH)
        .env("PORT", port.to_string())
        .env_remove("TIDEGATE_REDIS_URL")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let ran = Ran::of(&example);
    let expected =
        ["200", "200", "200", "200", "200", "429", "429"].map(|status| format!("request of alice: {status}"));
    assert_eq!(
        (ran.code, ran.out.lines().collect::<Vec<_>>()),
        (Some(0), expected.iter().map(String::as_str).collect()),
        "{ran:?}"
    );
}

/// An image and a container of this test, removed on drop.
struct Image {
    name: String,
    container: String,
}

fn docker(args: &[&str]) -> Ran {
    Ran::of(&Command::new("docker").args(args).stdin(Stdio::null()).output().unwrap())
}

impl Drop for Image {
    fn drop(&mut self) {
        docker(&["rm", "--force", "--volumes", &self.container]);
        docker(&["rmi", "--force", &self.name]);
    }
}

#[test]
fn imported_image_serves_without_rights() {
    let has_engine =
        Command::new("docker").arg("version").output().is_ok_and(|output| output.status.success());
    if !has_engine {
        eprintln!("not tested: no docker client, or no engine answers it");
        return;
    }
    let etc = Etc::new("image", "");
    // Without debug information, the image is a tenth as large.
    let program = etc.0.join("tidegate");
    let is_stripped =
        Command::new("strip").arg("-o").arg(&program).arg(PATH).status().is_ok_and(|status| status.success());
    let program = if is_stripped { program.to_str().unwrap() } else { PATH };
    let image = Image {
        name: format!("tidegate-test:{}", std::process::id()),
        container: format!("tidegate-test-{}", std::process::id()),
    };
    let imported = Command::new(deployed("docker/import")).args([program, &image.name]).output().unwrap();
    Ran::of(&imported).assert(0, &["made from"]);

    let hardened = ["--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"];
    let ports = ["--publish", "127.0.0.1:0:8080", "--name", &image.container];
    let run = [&["run"][..], &hardened, &ports, &[&image.name, "serve", "--demo"]].concat();
    let mut child = Command::new("docker")
        .args(run)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    if !line.starts_with("serving 7 rules: gRPC on 0.0.0.0:8081, HTTP on http://0.0.0.0:8080") {
        let mut error = String::new();
        child.stderr.as_mut().unwrap().read_to_string(&mut error).unwrap();
        panic!("{line}{error}");
    }
    let user = docker(&["inspect", "--format", "{{.Config.User}}", &image.container]);
    user.assert(0, &["65532:65532"]);
    let published = docker(&["port", &image.container, "8080/tcp"]).out;
    let address = published.lines().next().unwrap().to_owned();
    let body = r#"{"domain": "demo", "descriptors": [{"entries": [{"key": "user", "value": "bob"}]}]}"#;
    // The engine accepts connections before it forwards them.
    soon("an answer", || std::net::TcpStream::connect(&address).is_ok());
    let statuses: Vec<u16> = (0..6).map(|_| http(&address, "/json", body).0).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
    docker(&["stop", "--time", "20", &image.container]).assert(0, &[]);
    assert_eq!(child.wait().unwrap().code(), Some(0), "it ends in order at SIGTERM, as process 1");
}
