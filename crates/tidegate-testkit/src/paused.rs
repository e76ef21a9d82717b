use std::{io, marker::PhantomData, process::Command};

use crate::Error;

/// A suspended server. Dropping this value resumes it.
#[derive(Debug)]
pub struct Paused<'a> {
    process: String,
    server: PhantomData<&'a ()>,
}

impl Paused<'_> {
    pub(crate) fn new(process: &str) -> Result<Self, Error> {
        let paused = Self { process: process.to_owned(), server: PhantomData };
        paused.signal("-STOP")?;
        Ok(paused)
    }

    fn signal(&self, signal: &str) -> Result<(), Error> {
        let failed = |error| Error::io("kill", error);
        let status = Command::new("kill").args([signal, &self.process]).status().map_err(failed)?;
        if status.success() { Ok(()) } else { Err(failed(io::Error::other(format!("{signal}: {status}")))) }
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        // Fails if the process has exited, which needs no signal.
        let _ = self.signal("-CONT");
    }
}
