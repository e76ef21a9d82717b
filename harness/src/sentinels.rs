use std::{
    fmt,
    io::{BufRead, BufReader},
    thread,
    time::{Duration, Instant},
};

use crate::{Error, Server, environment, lifeline::Lifeline, process::free_port};

const NAME: &str = "primary";
const COUNT: usize = 3;

/// How long they may take to find each other and the replica.
const PATIENCE: Duration = Duration::from_secs(30);

/// A primary, its replica, and three sentinels that watch them: all plain processes on the loopback
/// interface. A primary that is gone is replaced within some two seconds.
pub struct Sentinels {
    sentinels: Vec<(u16, Lifeline)>,
    primary: Option<Server>,
    replica: Server,
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
        let primary = Server::process(&[])?;
        let port = port(&primary);
        let replica = Server::process(&["--replicaof", "127.0.0.1", port])?;
        let sentinels = (0..COUNT).map(|_| launch(port)).collect::<Result<Vec<_>, _>>()?;
        let started = Self { primary: Some(primary), replica, sentinels };
        started.wait_until_acquainted()?;
        Ok(started)
    }

    /// `redis://127.0.0.1:PORT` of each sentinel.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(|(port, _)| format!("redis://127.0.0.1:{port}")).collect()
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

fn port(server: &Server) -> &str {
    server.url().rsplit(':').next().unwrap_or_default()
}

fn launch(primary: &str) -> Result<(u16, Lifeline), Error> {
    let port = free_port()?;
    let arguments = [environment::run(), port.to_string(), primary.to_owned(), NAME.to_owned()];
    let mut lifeline = Lifeline::new(SCRIPT, &arguments).map_err(|error| Error::io("/bin/sh", error))?;
    let mut log = String::new();
    if let Some(output) = lifeline.output() {
        let mut output = BufReader::new(output);
        while output.read_line(&mut log).is_ok_and(|read| read > 0) {
            if log.contains("+monitor master") {
                return Ok((port, lifeline));
            }
        }
    }
    Err(Error::Process(log))
}

/// A sentinel keeps what it learns in its configuration.
const SCRIPT: &str = r#"
exec 2>&1
folder=$(mktemp -d "${TMPDIR:-/tmp}/tidegate-$1-XXXXXX") || exit
cat >"$folder/sentinel.conf" <<CONF
port $2
bind 127.0.0.1
dir $folder
sentinel monitor $4 127.0.0.1 $3 2
sentinel down-after-milliseconds $4 500
sentinel failover-timeout $4 3000
CONF
redis-server "$folder/sentinel.conf" --sentinel & server=$!
exec >/dev/null 2>&1
read -r _
kill -9 "$server"
wait "$server"
rm -rf "$folder"
"#;
