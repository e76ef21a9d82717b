//! Asks before something is changed.

use std::io::{self, BufRead, IsTerminal, Write};

use crate::args::Confirm;
use crate::failure::Failure;
use crate::output::safe;

impl Confirm {
    /// Fails where nobody could be asked, before anything is done.
    pub(crate) fn can_ask(self) -> Result<(), Failure> {
        if self.yes || (io::stdin().is_terminal() && io::stderr().is_terminal()) {
            return Ok(());
        }
        Err(Failure::usage(
            "this changes what others are answered, and there is no terminal to ask on: add --yes",
        ))
    }

    /// Whether it is meant.
    pub(crate) fn ask(self, question: &str) -> Result<bool, Failure> {
        self.can_ask()?;
        if self.yes {
            return Ok(true);
        }
        let mut err = io::stderr().lock();
        write!(err, "{} [y/N] ", safe(question))?;
        err.flush()?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        let is_meant = matches!(answer.trim(), "y" | "Y" | "yes" | "Yes");
        if !is_meant {
            writeln!(err, "nothing is changed")?;
        }
        Ok(is_meant)
    }
}
