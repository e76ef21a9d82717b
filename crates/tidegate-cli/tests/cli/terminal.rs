//! Runs the program in a terminal, as an operator sees it.

use std::io::{Read, Write};
use std::num::NonZero;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, SlavePty, native_pty_system};
use tidegate::{Quota, Rate};

use super::program::{PATH, Program};
use crate::support::fixture::{PATIENCE, builder};

/// The raw output, and the screen that a terminal shows for it.
struct Display {
    raw: Vec<u8>,
    screen: vt100::Parser,
}

pub(crate) struct Terminal {
    display: Arc<Mutex<Display>>,
    keyboard: Box<dyn Write + Send>,
    child: Box<dyn Child + Send + Sync>,
    master: Box<dyn MasterPty + Send>,
    /// Kept open, so that the last output can still be read after the program has ended.
    _slave: Box<dyn SlavePty + Send>,
    settings: String,
}

impl Terminal {
    pub(crate) fn run(program: &Program, args: &[&str]) -> Self {
        Self::with(program, args, &[("TERM", "xterm-256color")])
    }

    pub(crate) fn with(program: &Program, args: &[&str], environment: &[(&str, &str)]) -> Self {
        let size = PtySize { rows: 24, cols: 120, pixel_width: 0, pixel_height: 0 };
        let pair = native_pty_system().openpty(size).unwrap();
        let settings = settings(&*pair.master);
        let mut command = CommandBuilder::new(PATH);
        command.args(args);
        command.env_remove("NO_COLOR");
        command.env("TIDEGATE_REDIS_URL", &program.url);
        command.env("TIDEGATE_NAMESPACE", &program.namespace);
        environment.iter().for_each(|(name, value)| command.env(name, value));
        let child = pair.slave.spawn_command(command).unwrap();
        let screen = vt100::Parser::new(cells(size.rows), cells(size.cols), 0);
        let display = Arc::new(Mutex::new(Display { raw: Vec::new(), screen }));
        let mut reader = pair.master.try_clone_reader().unwrap();
        let reader_display = display.clone();
        thread::spawn(move || {
            let mut bytes = [0; 4_096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                let mut display = reader_display.lock().unwrap();
                display.raw.extend_from_slice(&bytes[..count]);
                display.screen.process(&bytes[..count]);
            }
        });
        let keyboard = pair.master.take_writer().unwrap();
        Self { display, keyboard, child, master: pair.master, _slave: pair.slave, settings }
    }

    fn display(&self) -> MutexGuard<'_, Display> {
        self.display.lock().unwrap()
    }

    pub(crate) fn screen(&self) -> String {
        self.display().screen.screen().contents()
    }

    pub(crate) fn raw(&self) -> String {
        String::from_utf8(self.display().raw.clone()).unwrap()
    }

    /// Waits until the screen contains the text.
    #[track_caller]
    pub(crate) fn see(&self, text: &str) {
        self.until(|terminal| terminal.screen().contains(text), text);
    }

    /// Waits until the condition holds.
    #[track_caller]
    pub(crate) fn until(&self, condition: impl Fn(&Self) -> bool, expected: &str) {
        let start = Instant::now();
        while !condition(self) {
            assert!(
                start.elapsed() < PATIENCE,
                "not on the screen in time: {expected}, but:\n{}",
                self.screen()
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Resizes the terminal and waits until the program draws for the new size.
    pub(crate) fn resize(&self, rows: u16, cols: u16) {
        let length = self.display().raw.len();
        self.display().screen.screen_mut().set_size(cells(rows), cells(cols));
        self.master.resize(PtySize { rows, cols, pixel_width: 0, pixel_height: 0 }).unwrap();
        self.until(|terminal| terminal.display().raw.len() > length, "any new output");
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.process_id().unwrap()
    }

    /// Returns whether the alternate screen is shown.
    pub(crate) fn is_full_screen(&self) -> bool {
        self.display().screen.screen().alternate_screen()
    }

    /// Waits for the end, and returns the exit code. Asserts that the terminal is restored.
    #[track_caller]
    pub(crate) fn end(&mut self) -> u32 {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < PATIENCE, "the program does not end:\n{}", self.screen());
            thread::sleep(Duration::from_millis(5));
        };
        self.until(|terminal| !terminal.is_full_screen(), "the shell's screen");
        self.until(|terminal| !terminal.display().screen.screen().hide_cursor(), "the cursor");
        assert_eq!(settings(&*self.master), self.settings, "the terminal's settings are as they were");
        status.exit_code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn cells(count: u16) -> NonZero<u16> {
    NonZero::new(count).unwrap()
}

/// Returns the terminal's settings, such as echo and line editing.
fn settings(master: &dyn MasterPty) -> String {
    format!("{:?}", master.get_termios().unwrap())
}

async fn exhausted_gate(program: &Program) -> tidegate::Gate {
    let limiter = builder(&program.url).namespace(&program.namespace).build().unwrap();
    let gate = limiter.gate("login", Quota::token_bucket(1, Rate::per_hour(1)));
    gate.penalize("user:42", 1).await.unwrap();
    gate
}

#[tokio::test]
async fn commands_prompt_for_confirmation_in_a_terminal() {
    let program = Program::shared();
    let gate = exhausted_gate(&program).await;
    for (args, question) in [
        (&["reset", "user:42", "--gate", "login"][..], "Reset user:42 at login? [y/N]"),
        (&["forget", "user:42"], "Remove 1 state of user:42 (gates: login)? [y/N]"),
        (&["block", "user:42", "--gate", "login", "--for", "1h"], "Block user:42 at login for 1h? [y/N]"),
    ] {
        for answer in ["n\n", "\n", "what\n", "\u{4}"] {
            let mut terminal = Terminal::run(&program, args);
            terminal.see(question);
            terminal.press(answer);
            terminal.see("nothing changed");
            assert_eq!(terminal.end(), 1);
        }
    }
    let decision = gate.peek("user:42").await.unwrap();
    assert!(!decision.is_allowed() && decision.retry_after() < Duration::from_secs(3_600));

    let mut terminal = Terminal::run(&program, &["reset", "user:42", "--gate", "login"]);
    terminal.see("[y/N]");
    terminal.press("y\n");
    terminal.see("user:42 at login is reset");
    assert_eq!(terminal.end(), 0);
    assert!(gate.peek("user:42").await.unwrap().is_allowed());

    let mut terminal = Terminal::run(&program, &["block", "user:42", "--gate", "login", "--for", "1h"]);
    terminal.see("its algorithm is unknown");
    assert_eq!(terminal.end(), 2);
    let mut terminal = Terminal::run(&program, &["reset", "user:42", "--gate", "login", "--yes"]);
    terminal.see("no state of user:42");
    assert_eq!(terminal.end(), 1);
    assert!(!terminal.raw().contains("[y/N]"));
}

#[tokio::test]
async fn colors_are_used_only_in_terminals_that_support_them() {
    let program = Program::shared();
    exhausted_gate(&program).await;
    let check = ["check", "user:42", "--gate", "login", "--token-bucket", "1", "--rate", "1/h"];
    let output = |environment: &[(&str, &str)]| {
        let mut terminal = Terminal::with(&program, &check, environment);
        terminal.see("denied");
        assert_eq!(terminal.end(), 1);
        terminal.raw()
    };
    assert!(output(&[("TERM", "xterm")]).contains("\x1b[31mdenied\x1b[0m"));
    assert!(
        output(&[("TERM", "xterm"), ("NO_COLOR", "")]).contains("\x1b[31mdenied"),
        "an empty NO_COLOR has no effect"
    );
    assert!(!output(&[("TERM", "xterm"), ("NO_COLOR", "1")]).contains('\x1b'));
    assert!(!output(&[("TERM", "dumb")]).contains('\x1b'));
    assert!(!program.run(check).out.contains('\x1b'), "no terminal");
    let mut json = Terminal::run(&program, &[&check[..], &["--json"]].concat());
    json.see("\"allowed\":false");
    assert_eq!(json.end(), 1);
    assert!(!json.raw().contains('\x1b'));
}
