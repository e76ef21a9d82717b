//! A server as a plain process in its own folder. Its [`Lifeline`] stops the process and removes the folder.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
};

use crate::{Error, environment, lifeline::Lifeline};

/// Starts a server process, and waits until it prints `sign`. Returns the process's folder.
///
/// `prepare` is a fragment of shell script. It may use `$folder` and the `arguments`, and turns the arguments
/// into the server's command. It may define `end_children`, which ends the processes that the server has started.
pub(crate) fn launch(prepare: &str, arguments: &[&str], sign: &str) -> Result<(PathBuf, Lifeline), Error> {
    let script = [BEGIN, prepare, RUN].concat();
    let run = environment::run();
    let arguments = [&[&*run], arguments].concat();
    let mut lifeline = Lifeline::new(&script, &arguments).map_err(|error| Error::io("/bin/sh", error))?;
    let mut log = String::new();
    if let Some(output) = lifeline.output() {
        let mut output = BufReader::new(output);
        while output.read_line(&mut log).is_ok_and(|read| read > 0) {
            if log.contains(sign) {
                let folder = log.lines().next().unwrap_or_default();
                return Ok((folder.into(), lifeline));
            }
        }
    }
    Err(Error::Process(log))
}

const BEGIN: &str = r#"
exec 2>&1
folder=$(mktemp -d "${TMPDIR:-/tmp}/tidegate-$1-XXXXXX") || exit
echo "$folder"
shift
end_children() { :; }
"#;

/// Kills the server instead of stopping it: a test may have left it suspended or in an endless script.
/// Only the server keeps the output open, so the output ends when the server does.
const RUN: &str = r#"
"$@" & server=$!
exec >/dev/null 2>&1
read -r _
kill -9 "$server"
wait "$server"
end_children
rm -rf "$folder"
"#;
