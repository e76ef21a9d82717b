use std::{
    fmt, thread,
    time::{Duration, Instant},
};

use crate::{Error, Server, daemon, lifeline::Lifeline, process::free_port};

const NAME: &str = "primary";
const COUNT: usize = 3;

/// Upper bound for the time until the sentinels know each other and the replica, and until a failover starts.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A primary, its replica, and three sentinels that monitor them: all plain processes on the loopback
/// interface. The sentinels replace a dead primary within about two seconds.
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
    /// Starts the processes, and waits until each sentinel knows all others.
    ///
    /// # Errors
    ///
    /// If there is no `redis-server`, or if the sentinels do not find each other.
    pub fn start() -> Result<Self, Error> {
        Self::of(&[])
    }

    /// Like [`start`](Self::start), with TLS between the processes and on additional ports. `tls` are the TLS
    /// options of redis-server: `["--tls-cert-file", …]`.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
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

    /// Returns `redis://127.0.0.1:PORT` of each sentinel.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(|sentinel| format!("redis://127.0.0.1:{}", sentinel.port)).collect()
    }

    /// Returns the sentinels' TLS URLs, if they were [started with TLS](Self::start_with_tls).
    #[must_use]
    pub fn tls_urls(&self) -> Vec<String> {
        self.sentinels.iter().map(|sentinel| format!("rediss://127.0.0.1:{}", sentinel.tls_port)).collect()
    }

    /// Returns the name of the primary in the sentinels' configuration.
    #[must_use]
    pub fn name(&self) -> &'static str {
        NAME
    }

    /// Returns the initial replica.
    #[must_use]
    pub fn replica(&self) -> &Server {
        &self.replica
    }

    /// Returns the initial primary, or `None` after [`kill_primary`](Self::kill_primary).
    #[must_use]
    pub fn primary(&self) -> Option<&Server> {
        self.primary.as_ref()
    }

    /// Kills the initial primary.
    pub fn kill_primary(&mut self) {
        self.primary = None;
    }

    /// Makes the sentinels exchange primary and replica, while both are alive.
    ///
    /// # Errors
    ///
    /// If the sentinels do not start the failover.
    pub fn exchange(&self) -> Result<(), Error> {
        let start = Instant::now();
        loop {
            // Retries, because at first the sentinel does not know enough about the replica.
            let reply = self.cli(0, &["SENTINEL", "FAILOVER", NAME])?;
            if reply.trim() == "OK" {
                return Ok(());
            }
            if start.elapsed() > TIMEOUT {
                return Err(Error::Process(format!("no failover: {reply}")));
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
                // In the order in which the reply contains them.
                let (replicas, others) = (number("num-slaves"), number("num-other-sentinels"));
                if (replicas.as_deref(), others.as_deref()) == (Some("1"), Some("2")) {
                    break;
                }
                if start.elapsed() > TIMEOUT {
                    return Err(Error::Process(format!("sentinels do not find each other: {state}")));
                }
                thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }
}

/// Starts a server. Returns it with the port by which the other processes know it.
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

/// Starts a sentinel on a free port, and on another one with TLS if `tls` is not empty.
fn launch(primary: &str, tls: &[&str]) -> Result<Sentinel, Error> {
    // Retries, because another process may take a free port before the sentinel does.
    let mut attempts = 5;
    loop {
        attempts -= 1;
        match launch_on((free_port()?, free_port()?), primary, tls) {
            Err(Error::Process(log)) if attempts > 0 && log.contains("already in use") => {}
            result => return result,
        }
    }
}

fn launch_on((port, tls_port): (u16, u16), primary: &str, tls: &[&str]) -> Result<Sentinel, Error> {
    let ports = [port.to_string(), tls_port.to_string()];
    let mut arguments = vec![&*ports[0], primary, NAME];
    if !tls.is_empty() {
        arguments.extend(["--tls-port", &ports[1]]);
    }
    let (_, lifeline) = daemon::launch(PREPARE, &[&arguments, tls].concat(), "+monitor master")?;
    Ok(Sentinel { port, tls_port, _lifeline: lifeline })
}

/// Writes the configuration file, in which the sentinel also stores its state. In memory if possible: a sentinel waits for
/// the disk before each vote, so beside builds the votes are late and split, again and again for half a minute.
const PREPARE: &str = r#"
if [ -w /dev/shm ]; then
    rmdir "$folder"
    folder=$(mktemp -d "/dev/shm/$(basename "$folder")-XXXXXX") || exit
fi
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
