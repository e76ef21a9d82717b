//! `serve`: the rate-limit service.

pub(crate) mod arguments;
mod certificates;
mod config_file;
mod demo;
pub(crate) mod effective;
mod from_env;
pub(crate) mod relations;
mod setting;

use std::env;
use std::ffi::OsString;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Parser;
use http::header::RETRY_AFTER;
use serde_json::{Value, json};
use tidegate::{Builder, Event, Limiter, Observer, OnFailure};
use tidegate_http::{Draft, Headers};
use tidegate_rules::{Loader, ReloadingRules, Rule, Rules};
use tidegate_server::{
    Admin, BoundServer, HeaderNames, PortName, RateLimitService, Server, ServerError, ServiceMetrics,
};

use self::certificates::Certificates;
use crate::args::{Charge, Cli, Command, FailurePolicy, Peer, Redis, ResponseHeaders, Serve};
use crate::failure::{Failure, NOT_A_NODE};
use crate::output::{Output, Text, inform, warn, warn_of};
use crate::{log, option_file};

/// Runs the service until the process is told to stop. Returns whether all requests were answered. With `--check`, only
/// checks the settings, and loads the rules and certificates. The admin port shows `settings`.
pub(crate) fn run(serve: &Serve, redis: &Redis, settings: Value, out: Output) -> Result<bool, Failure> {
    if serve.rules.is_none() && !serve.demo {
        return Err(Failure::usage(
            "no rules: add --rules PATH, or try example rules by `tidegate serve --demo`, which needs no Redis",
        ));
    }
    ensure_distinct_ports(serve)?;
    if let Some(key) = &serve.connections.grpc_key {
        option_file::warn_of_readers("--grpc-key", key, out.json);
    }
    let certificates = Certificates::load(&serve.connections, redis.timeout)?;
    let admin = arguments::port(serve, settings)?;
    if serve.configuration.check {
        // `bind` refuses these settings, too, but opens ports.
        admin.as_ref().map_or(Ok(()), Admin::validate)?;
        return check(serve, redis, out);
    }
    let max_open_files = raise_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        // Before the ports are printed: from then on, a signal ends the service in order.
        let stop = stop_signal()?;
        let metrics = ServiceMetrics::new();
        log::count_in(&metrics);
        let limiter = limiter(serve, redis, &metrics, out)?;
        let rules = rules(serve, &limiter)?;
        let limits = rules.limits();
        let count = limits.rules().iter().count();
        let server = server(serve, rules).metrics(metrics);
        let server = match &certificates {
            Some(certificates) => server.tls(certificates.tls()),
            None => server,
        };
        let server = match admin {
            Some(admin) => server.admin(admin),
            None => server,
        };
        let needed = server.max_open_files();
        let server = server.bind(serve.grpc_addr, serve.http_addr).await?;
        warn_of_few_files(serve, max_open_files, needed, out);
        warn_of_open_ports(serve, certificates.is_some(), out);
        // After the ports: a limiter that a start without ports drops would warn of calls that the end of the runtime cut
        // off. The log has the warning of an error, with the policy that decides meanwhile. The service starts without
        // Redis, so it waits no longer than a check does.
        let ready = limiter.ready_within(limiter.deadline()).await;
        // No fallback: the setting is wrong, and will not mend itself.
        if let Some(error) = ready.err().filter(|error| error.to_string().contains(NOT_A_NODE)) {
            return Err(error.into());
        }
        // Ends with the runtime.
        certificates.map(|certificates| tokio::spawn(certificates.follow(out.json)));
        if serve.demo {
            // Ends with the runtime.
            tokio::spawn(demo::make_traffic(limits));
        }
        report(serve, &server, count, out);
        Ok(server.run(stop).await?)
    })
}

/// Rejects the same address for two ports, which cannot both be opened.
fn ensure_distinct_ports(serve: &Serve) -> Result<(), Failure> {
    let mut ports = vec![("--grpc-addr", serve.grpc_addr), ("--http-addr", serve.http_addr)];
    ports.extend(arguments::address(serve).map(|address| ("--admin-addr", address)));
    for (at, (option, address)) in ports.iter().enumerate() {
        let same = ports[at + 1..].iter().find(|(_, other)| is_same_port(*address, *other));
        if let Some((other_option, other)) = same {
            let is_free = |port: &u16| ports.iter().all(|(_, address)| address.port() != *port);
            let free = (8080..).find(is_free).unwrap_or_default();
            return Err(Failure::usage(format!(
                "{option} {address} and {other_option} {other} are the same port: give each its own, such as {}",
                SocketAddr::new(other.ip(), free)
            )));
        }
    }
    Ok(())
}

/// Returns whether at most one of these addresses can be opened. Port 0 means any free port. Whether IPv6 addresses include
/// those of IPv4 is a setting of the operating system.
fn is_same_port(one: SocketAddr, other: SocketAddr) -> bool {
    let is_any = one.ip().is_unspecified() || other.ip().is_unspecified();
    let is_same_family = one.is_ipv4() == other.is_ipv4();
    one.port() != 0 && one.port() == other.port() && ((is_any && is_same_family) || one.ip() == other.ip())
}

/// Loads the rules, without Redis. Its address and its files are checked, too.
fn check(serve: &Serve, redis: &Redis, out: Output) -> Result<bool, Failure> {
    if let Some(path) = &serve.rules {
        let rules = load(serve, path)?;
        let warnings = rules.warnings().iter();
        warnings.for_each(|warning| warn(out.json, &format!("warning: {warning}")));
    }
    limiter(serve, redis, &ServiceMetrics::new(), out)?;
    Ok(true)
}

/// Loads the rules, which may need other settings.
fn load(serve: &Serve, path: &Path) -> Result<Rules, Failure> {
    let rules = loader(serve).load(path).map_err(Failure::ConfigErrors)?;
    match rules.iter().any(Rule::is_replicated) && serve.regions.region.is_none() {
        true => Err(Failure::usage(
            "a rule has `regions: gossip`, and the service has no peers: add --region NAME and --peer NAME=URL, or remove \
             `regions` from the rules",
        )),
        false => Ok(rules),
    }
}

fn loader(serve: &Serve) -> Loader {
    Loader::new()
        .written_for_envoy(serve.configuration.from_env)
        .merge_domains(serve.decisions.merge_domains)
        .charge_each(serve.decisions.charge == Charge::Each)
}

/// Returns how `serve --from-env` reads its rules in this environment, and their path. Prints its warnings.
pub(crate) fn loader_from_env(out: Output) -> Result<(Loader, PathBuf), Failure> {
    let merged = arguments::merge(["tidegate", "serve", "--from-env"].map(OsString::from).into())?;
    merged.warnings.iter().for_each(|warning| warn(out.json, warning));
    let parsed = Cli::try_parse_from(&merged.arguments);
    match parsed.map_err(|error| Failure::usage(error.to_string()))?.command {
        Command::Serve(serve) => Ok((loader(&serve), serve.rules.unwrap_or_default())),
        _ => Ok(Default::default()),
    }
}

fn limiter(serve: &Serve, redis: &Redis, metrics: &ServiceMetrics, out: Output) -> Result<Limiter, Failure> {
    let mut builder = match serve.demo {
        true => Limiter::builder().in_memory().publish_figures(true),
        false => redis
            .builder(out.json)?
            .deadline(serve.deadline)
            .on_failure(serve.on_failure.into())
            .publish_figures(true),
    };
    for path in &serve.decisions.reservation_secret_file {
        option_file::warn_of_readers("--reservation-secret-file", path, out.json);
        builder = builder.reservation_secret(redis.read("--reservation-secret-file", path)?);
    }
    let builder = with_regions(builder.debt_cap(serve.decisions.debt_cap), serve, out.json);
    let metrics = match serve.admin.stored_gate_labels {
        true => metrics.observer().with_stored_gate_names(),
        false => metrics.observer(),
    };
    Ok(builder.observer((LogObserver { json: out.json }, metrics)).build()?)
}

fn with_regions(builder: Builder, serve: &Serve, json: bool) -> Builder {
    let Some(region) = serve.regions.region.as_ref().filter(|_| !serve.demo) else { return builder };
    let is_public = |peer: &&Peer| {
        peer.url.may_have_password()
            && env::args_os().any(|argument| argument.to_string_lossy().contains(peer.url.secret()))
    };
    if let Some(peer) = serve.regions.peer.iter().find(is_public) {
        warn(
            json,
            &format!(
                "every user of this machine can see the password in --peer {peer} (`ps`): put the URL into the setting `peer` \
                 of the file, or into TIDEGATE_PEER"
            ),
        );
    }
    let peers = serve.regions.peer.iter();
    peers.fold(builder.region(region), |builder, peer| builder.peer(&peer.name, peer.url.secret()))
}

/// Loads the rules, and binds them to the limiter, which does not call Redis yet.
fn rules(serve: &Serve, limiter: &Limiter) -> Result<ReloadingRules, Failure> {
    let Some(path) = &serve.rules else {
        return Ok(demo::rules().map_err(Failure::ConfigErrors)?.bind(limiter).into());
    };
    // Loaded before, for errors with their lines.
    load(serve, path)?;
    Ok(loader(serve).watch(path, limiter)?)
}

fn server(serve: &Serve, rules: ReloadingRules) -> Server {
    let decisions = &serve.decisions;
    let mut service = RateLimitService::new(rules)
        .headers(Headers::from(serve.headers).rule_paths(decisions.rule_paths_in_headers))
        .shadow(decisions.shadow)
        .charge_denied(decisions.charge_denied)
        .peeks_pass_at_limit(decisions.peeks_pass_at_limit)
        .request_metadata(decisions.request_metadata)
        .denied_body(&*serve.denied_body);
    if serve.headers == ResponseHeaders::Ratelimit {
        let headers = Headers::from(serve.headers).retry_after(decisions.wait_header.is_some());
        service = service.headers(headers).header_names(HeaderNames {
            limit: decisions.limit_header.clone(),
            remaining: decisions.remaining_header.clone(),
            reset: decisions.reset_header.clone(),
            wait: decisions.wait_header.clone().unwrap_or(RETRY_AFTER),
        });
    }
    let connections = &serve.connections;
    Server::new(service)
        .max_message_bytes(serve.max_message)
        .max_unfinished_bytes(serve.max_unfinished)
        .keepalive(connections.keepalive)
        .max_connection_age(connections.max_connection_age)
        .max_connections(connections.max_connections)
        .drain_notice(connections.drain_notice)
        .drain(connections.drain)
        .ready_needs_redis(decisions.ready_needs_redis || serve.on_failure == FailurePolicy::Error)
        .health_needs_redis(decisions.ready_needs_redis)
}

/// Warns of ports that other machines reach without a certificate: each of their clients can charge every key.
fn warn_of_open_ports(serve: &Serve, has_tls: bool, out: Output) {
    let is_open = |address: SocketAddr| !address.ip().to_canonical().is_loopback();
    if is_open(serve.grpc_addr) && !(has_tls && serve.connections.grpc_client_ca.is_some()) {
        let how = if has_tls { "does not ask clients for certificates" } else { "has no TLS" };
        warn(
            out.json,
            &format!(
                "the gRPC port listens on {} and {how}: add --grpc-client-ca, or let only trusted clients reach it",
                serve.grpc_addr
            ),
        );
    }
    if is_open(serve.http_addr) {
        warn(
            out.json,
            &format!(
                "the HTTP port listens on {} and has no TLS: let only trusted clients reach it",
                serve.http_addr
            ),
        );
    }
}

/// Warns if this process may have fewer files open than its connections need.
fn warn_of_few_files(serve: &Serve, max: Option<u64>, needed: usize, out: Output) {
    let Some(max) = max.filter(|max| *max < needed as u64) else { return };
    let connections = serve.connections.max_connections;
    let message = format!(
        "this process may have {max} files open, and --max-connections {connections} needs {needed}: raise the hard limit \
         (LimitNOFILE of systemd, ulimit -Hn), or lower --max-connections. Without a free file, clients wait"
    );
    warn(out.json, &message);
}

/// Prints the addresses; of a demo, also what to try.
fn report(serve: &Serve, server: &BoundServer, rules: usize, out: Output) {
    let (grpc, http) = (server.grpc_addr(), server.http_addr());
    let line = |text: String| vec![Text::from(text)];
    let plural = if rules == 1 { "" } else { "s" };
    let mut lines =
        vec![line(format!("serving {rules} rule{plural}: gRPC on {grpc}, HTTP on http://{http}"))];
    if serve.demo {
        lines.extend(demo::lines(http, server.admin_addr()).into_iter().map(line));
    }
    let admin = server.admin_addr();
    if let Some(admin) = admin {
        lines.push(line(match cfg!(feature = "console") {
            true => format!("web console on http://{admin}/ (also /config and /metrics)"),
            false => format!("admin port on http://{admin} (/config and /metrics)"),
        }));
    }
    let json = json!({ "grpc_addr": grpc, "http_addr": http, "admin_addr": admin, "rules": rules });
    out.print_later(&json, &lines);
}

/// Ends when the process receives a signal that asks it to end: SIGTERM, SIGINT, SIGQUIT or SIGHUP. Ignores SIGUSR1 and
/// SIGUSR2, which would end it at once.
#[cfg(unix)]
pub(crate) fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    use std::future::poll_fn;
    use std::task::Poll;

    use tokio::signal::unix::{SignalKind, signal};
    // A handler remains without its receiver.
    drop(signal(SignalKind::user_defined1())?);
    drop(signal(SignalKind::user_defined2())?);
    let mut kinds = vec![SignalKind::terminate(), SignalKind::interrupt(), SignalKind::quit()];
    if !ignores_hangup() {
        kinds.push(SignalKind::hangup());
    }
    let mut signals = kinds.into_iter().map(signal).collect::<io::Result<Vec<_>>>()?;
    Ok(poll_fn(move |context| match signals.iter_mut().any(|signal| signal.poll_recv(context).is_ready()) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    }))
}

/// Returns whether the process was started to ignore SIGHUP, as `nohup` does: then it outlives its terminal.
#[cfg(unix)]
fn ignores_hangup() -> bool {
    // Without unsafe code, only Linux shows it.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & 1 == 1)
}

/// Ends when the process is interrupted.
#[cfg(not(unix))]
pub(crate) fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    Ok(async { drop(tokio::signal::ctrl_c().await) })
}

/// Reports reloads of the rules, and warnings of the limiter, in the log.
struct LogObserver {
    json: bool,
}

impl Observer for LogObserver {
    fn on(&self, event: &Event<'_>) {
        match event {
            Event::Warned(warning) => warn_of(self.json, warning),
            Event::Recovered => inform(self.json, "Redis decides checks again: limits are shared"),
            Event::RulesReloaded(Ok(rules)) => {
                inform(self.json, &format!("rules reloaded: {rules} in force"));
            }
            Event::RulesReloaded(Err(error)) => {
                warn(self.json, &format!("rules not reloaded, the previous ones stay in force: {error}"));
            }
            _ => {}
        }
    }

    fn reports_warnings(&self) -> bool {
        true
    }
}

impl From<FailurePolicy> for OnFailure {
    fn from(policy: FailurePolicy) -> Self {
        match policy {
            FailurePolicy::Local => Self::Local,
            FailurePolicy::Open => Self::Open,
            FailurePolicy::Closed => Self::Closed,
            FailurePolicy::Error => Self::Error,
        }
    }
}

impl From<ResponseHeaders> for Headers {
    fn from(headers: ResponseHeaders) -> Self {
        let x_ratelimit = !matches!(headers, ResponseHeaders::Ietf);
        let draft = matches!(headers, ResponseHeaders::Ietf | ResponseHeaders::All).then_some(Draft::Eleven);
        match headers {
            ResponseHeaders::None => Self::none(),
            ResponseHeaders::Ratelimit => Self::none().x_ratelimit(true),
            _ => Self::new().x_ratelimit(x_ratelimit).draft(draft),
        }
    }
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        let option = match &error {
            ServerError::Listen { port: PortName::Grpc, .. } => " (--grpc-addr)",
            ServerError::Listen { port: PortName::Http, .. } => " (--http-addr)",
            ServerError::Listen { port: PortName::Admin, .. } => " (--admin-addr)",
            _ => "",
        };
        Self::usage(format!("{error}{option}"))
    }
}

/// Raises the soft limit to the hard limit, as many servers and the runtime of Go do. The soft limit is often 1,024, for
/// programs that use `select`; each connection of a service needs one of them. If it cannot be raised, it stays. Returns the
/// limit, if there is one.
#[cfg(unix)]
pub(crate) fn raise_limit() -> Option<u64> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // macOS rejects a limit above that of its kernel.
    let _ = setrlimit(Resource::Nofile, limit);
    getrlimit(Resource::Nofile).current
}

/// Does nothing: this system has no such limit.
#[cfg(not(unix))]
pub(crate) const fn raise_limit() -> Option<u64> {
    None
}
