//! The program in a terminal, as a person sees it.

use std::io::{Read, Write};
use std::num::NonZero;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, SlavePty, native_pty_system};
use tidegate::{Quota, Rate};

use super::program::{PATH, Program};
use crate::support::fixture::{PATIENCE, builder};

/// What came out, and what that makes of a screen.
struct Seen {
    raw: Vec<u8>,
    screen: vt100::Parser,
}

pub(crate) struct Terminal {
    seen: Arc<Mutex<Seen>>,
    keyboard: Box<dyn Write + Send>,
    child: Box<dyn Child + Send + Sync>,
    master: Box<dyn MasterPty + Send>,
    /// Open, so that what was written last can still be read when the program has ended.
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
        let seen =
            Seen { raw: Vec::new(), screen: vt100::Parser::new(letters(size.rows), letters(size.cols), 0) };
        let seen = Arc::new(Mutex::new(seen));
        let mut reader = pair.master.try_clone_reader().unwrap();
        let sees = seen.clone();
        thread::spawn(move || {
            let mut bytes = [0; 4_096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                let mut seen = sees.lock().unwrap();
                seen.raw.extend_from_slice(&bytes[..count]);
                seen.screen.process(&bytes[..count]);
            }
        });
        let keyboard = pair.master.take_writer().unwrap();
        Self { seen, keyboard, child, master: pair.master, _slave: pair.slave, settings }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }

    pub(crate) fn screen(&self) -> String {
        self.seen().screen.screen().contents()
    }

    pub(crate) fn raw(&self) -> String {
        String::from_utf8(self.seen().raw.clone()).unwrap()
    }

    /// Waits until this stands on the screen.
    #[track_caller]
    pub(crate) fn see(&self, text: &str) {
        self.until(|terminal| terminal.screen().contains(text), text);
    }

    #[track_caller]
    fn until(&self, is_so: impl Fn(&Self) -> bool, what: &str) {
        let start = Instant::now();
        while !is_so(self) {
            assert!(start.elapsed() < PATIENCE, "not seen: {what}, but:\n{}", self.screen());
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// And waits until something is drawn for the new size.
    pub(crate) fn resize(&self, rows: u16, cols: u16) {
        let drawn = self.seen().raw.len();
        self.seen().screen.screen_mut().set_size(letters(rows), letters(cols));
        self.master.resize(PtySize { rows, cols, pixel_width: 0, pixel_height: 0 }).unwrap();
        self.until(|terminal| terminal.seen().raw.len() > drawn, "anything new");
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.process_id().unwrap()
    }

    /// Whether another screen than the shell's is shown.
    pub(crate) fn is_full_screen(&self) -> bool {
        self.seen().screen.screen().alternate_screen()
    }

    /// Waits until it has ended, and how. What it leaves behind is the terminal that it found.
    #[track_caller]
    pub(crate) fn end(&mut self) -> u32 {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < PATIENCE, "it does not end:\n{}", self.screen());
            thread::sleep(Duration::from_millis(5));
        };
        self.until(|terminal| !terminal.is_full_screen(), "the shell's screen");
        self.until(|terminal| !terminal.seen().screen.screen().hide_cursor(), "the cursor");
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

fn letters(count: u16) -> NonZero<u16> {
    NonZero::new(count).unwrap()
}

/// Echo, line editing and the like.
fn settings(master: &dyn MasterPty) -> String {
    format!("{:?}", master.get_termios().unwrap())
}

async fn used(program: &Program) -> tidegate::Gate {
    let limiter = builder(&program.url).namespace(&program.namespace).build().unwrap();
    let gate = limiter.gate("login", Quota::token_bucket(1, Rate::per_hour(1)));
    gate.penalize("user:42", 1).await.unwrap();
    gate
}

#[tokio::test]
async fn on_a_terminal_it_asks_before_it_changes_something() {
    let program = Program::shared();
    let gate = used(&program).await;
    for (args, question) in [
        (
            &["reset", "user:42", "--gate", "login"][..],
            "Make user:42 of login as if it had never been asked for? [y/N]",
        ),
        (&["forget", "user:42"], "Remove 1 state of user:42 (gates: login)? [y/N]"),
        (
            &["block", "user:42", "--gate", "login", "--for", "1h"],
            "Deny all to user:42 at login for 1h? [y/N]",
        ),
    ] {
        for answer in ["n\n", "\n", "what\n", "\u{4}"] {
            let mut terminal = Terminal::run(&program, args);
            terminal.see(question);
            terminal.press(answer);
            terminal.see("nothing is changed");
            assert_eq!(terminal.end(), 1);
        }
    }
    let decision = gate.peek("user:42").await.unwrap();
    assert!(!decision.is_allowed() && decision.retry_after() < Duration::from_secs(3_600));

    let mut terminal = Terminal::run(&program, &["reset", "user:42", "--gate", "login"]);
    terminal.see("[y/N]");
    terminal.press("y\n");
    terminal.see("user:42 of login is as if it had never been asked for");
    assert_eq!(terminal.end(), 0);
    assert!(gate.peek("user:42").await.unwrap().is_allowed());

    let mut terminal = Terminal::run(&program, &["block", "user:42", "--gate", "login", "--for", "1h"]);
    terminal.see("its algorithm is not known");
    assert_eq!(terminal.end(), 2);
    let mut terminal = Terminal::run(&program, &["reset", "user:42", "--gate", "login", "--yes"]);
    terminal.see("nothing is stored");
    assert_eq!(terminal.end(), 1);
    assert!(!terminal.raw().contains("[y/N]"));
}

#[tokio::test]
async fn colours_are_for_terminals_that_want_them() {
    let program = Program::shared();
    used(&program).await;
    let check = ["check", "user:42", "--gate", "login", "--token-bucket", "1", "--rate", "1/h"];
    let said = |environment: &[(&str, &str)]| {
        let mut terminal = Terminal::with(&program, &check, environment);
        terminal.see("denied");
        assert_eq!(terminal.end(), 1);
        terminal.raw()
    };
    assert!(said(&[("TERM", "xterm")]).contains("\x1b[31mdenied\x1b[0m"));
    assert!(
        said(&[("TERM", "xterm"), ("NO_COLOR", "")]).contains("\x1b[31mdenied"),
        "an empty NO_COLOR says nothing"
    );
    assert!(!said(&[("TERM", "xterm"), ("NO_COLOR", "1")]).contains('\x1b'));
    assert!(!said(&[("TERM", "dumb")]).contains('\x1b'));
    assert!(!program.run(check).out.contains('\x1b'), "no terminal");
    let mut json = Terminal::run(&program, &[&check[..], &["--json"]].concat());
    json.see("\"allowed\":false");
    assert_eq!(json.end(), 1);
    assert!(!json.raw().contains('\x1b'));
}
