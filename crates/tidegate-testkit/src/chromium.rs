use std::path::PathBuf;

use crate::{Error, daemon, environment, lifeline::Lifeline, process::free_port};

/// A WebDriver server that starts Chromium, both from the PATH (`scripts/chromium`). Dropping this value stops it, and so
/// the browsers that it has started with [`ARGUMENTS`](Self::ARGUMENTS).
#[derive(Debug)]
pub struct Chromium {
    port: u16,
    program: PathBuf,
    _lifeline: Lifeline,
}

impl Chromium {
    /// The arguments for a browser. It has no window, ends with the WebDriver server (its pipe closes), and calls no
    /// other host by itself.
    pub const ARGUMENTS: [&str; 8] = [
        "--headless=new",
        "--remote-debugging-pipe",
        // Tests may run as root, for whom the sandbox does not start.
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        "--hide-scrollbars",
    ];

    /// Starts the WebDriver server.
    ///
    /// # Errors
    ///
    /// If there is no Chromium or no `chromedriver`, or if it exits at once; the error contains its log.
    pub fn start() -> Result<Self, Error> {
        let program = environment::path_of("chromium").ok_or(Error::NoChromium)?;
        let driver = environment::path_of("chromedriver").ok_or(Error::NoChromium)?;
        let port = free_port()?;
        let arguments = [&*driver.to_string_lossy(), &port.to_string()];
        let (_, lifeline) = daemon::launch(PREPARE, &arguments, STARTED)?;
        Ok(Self { port, program, _lifeline: lifeline })
    }

    /// Returns `http://127.0.0.1:PORT`, the URL of the WebDriver server.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Returns the path of the browser.
    #[must_use]
    pub fn program(&self) -> &std::path::Path {
        &self.program
    }
}

const STARTED: &str = "was started successfully";

/// The profile of the browser is in the folder. Nothing reads the output after the start. The processes of the browser
/// outlive the driver, and write to the folder until they end. They are those that work in it.
const PREPARE: &str = r#"
driver=$1 port=$2
export TMPDIR="$folder" HOME="$folder"
trap '' PIPE
end_children() {
    while browsers=$(find /proc -maxdepth 2 -name cwd -lname "$folder*" 2>/dev/null | cut -d / -f 3); [ -n "$browsers" ]; do
        kill -9 $browsers
        sleep 0.05
    done
}
set -- /bin/sh -c 'cd "$0" && exec "$@"' "$folder" "$driver" --port="$port" --log-level=SEVERE
"#;
