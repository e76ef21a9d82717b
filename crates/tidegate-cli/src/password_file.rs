//! The password of Redis in a file, which can change while the program runs.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate::Builder;
use tokio::task::{JoinError, spawn_blocking};

use crate::failure::Failure;
use crate::option_file::OptionFile;

const OPTION: &str = "--password-file";

/// How long a connection waits for the file, which may be on an unreachable file server.
const PATIENCE: Duration = Duration::from_millis(100);

/// The file of `--password-file`.
struct PasswordFile {
    file: OptionFile,
    /// The password that was read last.
    password: String,
}

/// Gives a builder the password of a file. It is read again for each new connection, unless it can be read only once, as a
/// pipe.
pub(crate) fn log_in(
    builder: Builder,
    user: &str,
    path: &Path,
    timeout: Duration,
) -> Result<Builder, Failure> {
    let file = OptionFile::new(OPTION, path);
    let mut file = PasswordFile { file, password: String::new() };
    file.read(timeout)?;
    if !path.is_file() {
        return Ok(builder.credentials(user, &file.password));
    }
    let (user, file) = (user.to_owned(), Arc::new(Mutex::new(file)));
    Ok(builder.credentials_provider(move || {
        let (user, file) = (user.clone(), file.clone());
        async move {
            let password =
                spawn_blocking(move || file.lock().unwrap_or_else(PoisonError::into_inner).newest());
            Ok::<_, JoinError>((user, password.await?))
        }
    }))
}

impl PasswordFile {
    fn read(&mut self, timeout: Duration) -> Result<(), Failure> {
        let password = String::from_utf8(self.file.read(timeout)?)
            .map_err(|_| Failure::usage(format!("the file of {OPTION} is not text in UTF-8")))?;
        let password = password.trim_end_matches(['\r', '\n']);
        // A program that writes a new password may have emptied the file first.
        if password.is_empty() {
            return Err(Failure::usage(format!("the file of {OPTION} is empty: write the password into it")));
        }
        password.clone_into(&mut self.password);
        Ok(())
    }

    /// Returns the password of the file; the last one while the file is empty or cannot be read. Redis reports a wrong one.
    fn newest(&mut self) -> String {
        let _ = self.read(PATIENCE);
        self.password.clone()
    }
}
