use crate::{Error, daemon, environment, lifeline::Lifeline, process::free_port};

/// An nginx from the PATH or from `scripts/nginx`, with a cache. Dropping this value stops it.
#[derive(Debug)]
pub struct Nginx {
    port: u16,
    _lifeline: Lifeline,
}

impl Nginx {
    /// Starts nginx with these directives in its only `server` block, and with a cache named `cache`.
    ///
    /// # Errors
    ///
    /// If there is no nginx, or if it exits at once; the error contains its log.
    pub fn start(directives: &str) -> Result<Self, Error> {
        let program = environment::program("nginx", "nginx").ok_or(Error::NoNginx)?;
        let port = free_port()?;
        let arguments = [&*program.to_string_lossy(), &port.to_string(), directives];
        let (_, lifeline) = daemon::launch(PREPARE, &arguments, LISTENS)?;
        Ok(Self { port, _lifeline: lifeline })
    }

    /// Returns `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

/// nginx logs the system's name after it has opened its sockets.
const LISTENS: &str = "OS: ";

/// One process, which `kill -9` stops: the workers of a killed master would stay. All paths are in the folder.
/// It logs to a pipe that is not read after [`LISTENS`], so it must ignore SIGPIPE from its start.
const PREPARE: &str = r#"
program=$1 port=$2
cat >"$folder/nginx.conf" <<END
daemon off;
master_process off;
pid nginx.pid;
error_log stderr notice;
events {}
http {
    access_log off;
    client_body_temp_path body;
    fastcgi_temp_path fastcgi;
    proxy_temp_path proxy;
    scgi_temp_path scgi;
    uwsgi_temp_path uwsgi;
    proxy_cache_path cached keys_zone=cache:1m;
    server {
        listen 127.0.0.1:$port;
        $3
    }
}
END
trap '' PIPE
set -- "$program" -p "$folder" -c "$folder/nginx.conf"
"#;
