//! Prompts for confirmation before a command changes state.

use std::io::{self, BufRead, IsTerminal, Write};

use crate::args::Changing;
use crate::failure::Failure;
use crate::output::safe;

impl Changing {
    /// Fails if confirmation is not possible. Called before any other work.
    pub(crate) fn can_confirm(&self) -> Result<(), Failure> {
        if self.yes || (io::stdin().is_terminal() && io::stderr().is_terminal()) {
            return Ok(());
        }
        Err(Failure::usage(
            "this command affects other clients, and without a terminal it cannot be confirmed: add --yes",
        ))
    }

    /// Prompts for a yes or no, except with `--yes`. Returns whether the user confirmed.
    pub(crate) fn prompt(&self, question: &str) -> Result<bool, Failure> {
        self.can_confirm()?;
        if self.yes {
            return Ok(true);
        }
        let mut err = io::stderr().lock();
        write!(err, "{} [y/N] ", safe(question))?;
        err.flush()?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        let is_confirmed = matches!(answer.trim(), "y" | "Y" | "yes" | "Yes");
        if !is_confirmed {
            writeln!(err, "not confirmed: nothing changed")?;
        }
        Ok(is_confirmed)
    }
}
