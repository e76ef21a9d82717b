use std::{
    io,
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

/// A shell that waits for the end of a pipe from this process, then cleans up.
///
/// The kernel closes the pipe however this process ends. The shell runs in its own process group and
/// ignores the signals that a terminal or a CI runner sends to all processes.
#[derive(Debug)]
pub(crate) struct Lifeline {
    shell: Child,
    pipe: Option<ChildStdin>,
}

impl Lifeline {
    /// Starts the shell. `script` reads from the pipe (`read -r _`), cleans up and exits. `arguments` are its
    /// `$1`, `$2`…
    pub(crate) fn new<S: AsRef<str>>(script: &str, arguments: &[S]) -> io::Result<Self> {
        let mut shell = Command::new("/bin/sh")
            .arg("-c")
            .arg(format!("trap '' INT TERM HUP\n{script}"))
            .arg("tidegate-lifeline")
            .args(arguments.iter().map(AsRef::as_ref))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let pipe = shell.stdin.take();
        Ok(Self { shell, pipe })
    }

    /// Returns the output of the script and of the processes that it starts.
    pub(crate) fn output(&mut self) -> Option<ChildStdout> {
        self.shell.stdout.take()
    }
}

impl Drop for Lifeline {
    fn drop(&mut self) {
        drop(self.pipe.take());
        // The cleanup is complete only when the shell exits.
        let _ = self.shell.wait();
    }
}
