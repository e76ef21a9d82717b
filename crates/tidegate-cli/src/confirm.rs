//! Before a command changes state: prompts for confirmation, and counts the live instances that follow a change of the fleet, so
//! that a mistyped namespace is not answered with success.

use std::io::{self, BufRead, IsTerminal, Write};

use tidegate::admin::{Inspector, did_you_mean, listed};

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

/// Returns the number of live instances. Fails if there is none: nothing would follow the change.
pub(crate) async fn ensure_any(inspector: &Inspector) -> Result<u64, Failure> {
    let instances = inspector.instances().await?;
    if instances > 0 {
        return Ok(instances);
    }
    let (namespace, others) = (inspector.namespace(), inspector.live_namespaces().await?);
    let known = others.iter().map(String::as_str);
    let exists = match others.is_empty() {
        true => "no namespace in this database has a live instance".to_owned(),
        false => format!("namespaces with live instances: {}", listed(known.clone())),
    };
    Err(Failure::NoEffect(format!(
        "no live instance in namespace {namespace}{}; nothing changed\n{exists}\ninstances with \
         `Builder::instances` are not counted; to change it anyway, add --force",
        did_you_mean(namespace, known),
    )))
}

/// Tells how many instances are live. Also an instance that does not follow overrides is counted.
pub(crate) fn followers(instances: u64) -> String {
    match instances {
        0 => "no live instance is counted".to_owned(),
        1 => "1 live instance, which applies it within a second if it follows overrides".to_owned(),
        _ => {
            format!(
                "{instances} live instances, of which those that follow overrides apply it within a second"
            )
        }
    }
}
