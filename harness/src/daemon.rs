//! A server as a plain process in a folder of its own, which ends and goes with its [`Lifeline`].

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
};

use crate::{Error, environment, lifeline::Lifeline};

/// Runs `prepare`, a piece of a shell's script which may use `$folder` and the `arguments`, and makes
/// of these the command of the server; until this has printed `sign`. Its folder.
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
"#;

/// The server is killed, not asked: a test may have left it stopped or in a script without end.
/// Only the server keeps the output open, so its end is the server's.
const RUN: &str = r#"
"$@" & server=$!
exec >/dev/null 2>&1
read -r _
kill -9 "$server"
wait "$server"
rm -rf "$folder"
"#;
