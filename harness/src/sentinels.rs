use std::{
    fmt, thread,
    time::{Duration, Instant},
};

use crate::{Error, Server, daemon, lifeline::Lifeline, process::free_port};

const NAME: &str = "primary";
const COUNT: usize = 3;

/// How long they may take to find each other and the replica.
const PATIENCE: Duration = Duration::from_secs(30);

/// A primary, its replica, and three sentinels that watch them: all plain processes on the loopback
/// interface. A primary that is gone is replaced within some two seconds.
pub struct Sentinels {
    sentinels: Vec<Sentinel>,
    primary: Option<Server>,
    replica: Server,
}

struct Sentinel {
    port: u16,
    tls_port: u16,
    _lifeline: Lifeline,
}

impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sentinels").field("urls", &self.urls()).finish_non_exhaustive()
    }
}

impl Sentinels {
    /// Starts them, and waits until each sentinel knows all others.
    ///
    /// # Errors
    ///
    /// If there is no `redis-server`, or they do not find each other.
    pub fn start() -> Result<Self, Error> {
        Self::of(&[])
    }

    /// Like [`start`](Self::start), all of them with TLS: among each other, and on further ports. `tls`
    /// are redis-server's options for it: `["--tls-cert-file", …]`.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn start_with_tls(tls: &[&str]) -> Result<Self, Error> {
        Self::of(&[&["--tls-replication", "yes"], tls].concat())
    }

    fn of(tls: &[&str]) -> Result<Self, Error> {
        let (primary, port) = server(tls, &[])?;
        let (replica, _) = server(tls, &["--replicaof", "127.0.0.1", &port])?;
        let sentinels = (0..COUNT).map(|_| launch(&port, tls)).collect::<Result<Vec<_>, _>>()?;
        let started = Self { primary: Some(primary), replica, sentinels };
        started.wait_until_acquainted()?;
        Ok(started)
    }

    /// `redis://127.0.0.1:PORT` of each sentinel.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(|sentinel| format!("redis://127.0.0.1:{}", sentinel.port)).collect()
    }

    /// Their URLs with TLS, if they have been [started with it](Self::start_with_tls).
    #[must_use]
    pub fn tls_urls(&self) -> Vec<String> {
        self.sentinels.iter().map(|sentinel| format!("rediss://127.0.0.1:{}", sentinel.tls_port)).collect()
    }

    /// As what they know the primary.
    #[must_use]
    pub fn name(&self) -> &'static str {
        NAME
    }

    /// Whom the sentinels made a replica at first.
    #[must_use]
    pub fn replica(&self) -> &Server {
        &self.replica
    }

    /// The first primary, until it is killed.
    #[must_use]
    pub fn primary(&self) -> Option<&Server> {
        self.primary.as_ref()
    }

    /// Kills the first primary.
    pub fn kill_primary(&mut self) {
        self.primary = None;
    }

    /// Has the sentinels exchange primary and replica, both alive.
    ///
    /// # Errors
    ///
    /// If they do not begin it.
    pub fn exchange(&self) -> Result<(), Error> {
        let start = Instant::now();
        loop {
            // At first the replica is not known well enough.
            let said = self.cli(0, &["SENTINEL", "FAILOVER", NAME])?;
            if said.trim() == "OK" {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                return Err(Error::Process(format!("no failover: {said}")));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn cli(&self, sentinel: usize, arguments: &[&str]) -> Result<String, Error> {
        crate::client::run_cli(&self.urls()[sentinel], arguments)
    }

    fn wait_until_acquainted(&self) -> Result<(), Error> {
        let start = Instant::now();
        for sentinel in 0..COUNT {
            loop {
                let state = self.cli(sentinel, &["SENTINEL", "MASTER", NAME])?;
                let mut texts = state.split('"').skip(1).step_by(2);
                let mut number = |name| {
                    texts.find(|text| *text == name);
                    texts.next().map(str::to_owned)
                };
                // In the order in which they stand there.
                let (replicas, others) = (number("num-slaves"), number("num-other-sentinels"));
                if (replicas.as_deref(), others.as_deref()) == (Some("1"), Some("2")) {
                    break;
                }
                if start.elapsed() > PATIENCE {
                    return Err(Error::Process(format!("sentinels do not find each other: {state}")));
                }
                thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }
}

/// And the port by which the others know it.
fn server(tls: &[&str], options: &[&str]) -> Result<(Server, String), Error> {
    if tls.is_empty() {
        let server = Server::process(options)?;
        let port = server.url().rsplit(':').next().unwrap_or_default().to_owned();
        return Ok((server, port));
    }
    let port = free_port()?.to_string();
    let server = Server::process(&[&["--tls-port", &port], tls, options].concat())?;
    Ok((server, port))
}

/// On a port of its own, and on another one with TLS where options for that are given.
fn launch(primary: &str, tls: &[&str]) -> Result<Sentinel, Error> {
    let (port, tls_port) = (free_port()?, free_port()?);
    let ports = [port.to_string(), tls_port.to_string()];
    let mut arguments = vec![&*ports[0], primary, NAME];
    if !tls.is_empty() {
        arguments.extend(["--tls-port", &ports[1]]);
    }
    let (_, lifeline) = daemon::launch(PREPARE, &[&arguments, tls].concat(), "+monitor master")?;
    Ok(Sentinel { port, tls_port, _lifeline: lifeline })
}

/// A sentinel keeps what it learns in its configuration.
const PREPARE: &str = r#"
cat >"$folder/sentinel.conf" <<CONF
port $1
bind 127.0.0.1
dir $folder
sentinel monitor $3 127.0.0.1 $2 2
sentinel down-after-milliseconds $3 500
sentinel failover-timeout $3 3000
CONF
shift 3
set -- redis-server "$folder/sentinel.conf" --sentinel "$@"
"#;
