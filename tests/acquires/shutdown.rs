//! A shutdown while a message is on its way to Redis.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use redis::{Cmd, Parser, RedisResult, Value};
use tidegate::Quota;
use tidegate_testkit::Server;

use super::remaining;
use crate::support::fixture::{PATIENCE, builder, namespace};

/// The reply to a script call. The proxy returns it after the client's next script call has arrived.
enum Late {
    OfServer,
    Say(&'static str),
}

const STALE: &str = "*2\r\n:1700000000000000\r\n$13\r\nSTALE message\r\n";
const NOSCRIPT: &str = "-NOSCRIPT No matching script.\r\n";

/// A proxy for one client, which keeps the order of the calls.
struct LateReplies {
    url: String,
    /// The replies to the next script calls. The server replies to all others at once.
    late: Sender<Late>,
    /// Receives each script call that arrives.
    calls: Receiver<()>,
}

impl LateReplies {
    fn of(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let server = TcpStream::connect(server.url().trim_start_matches("redis://")).unwrap();
        let ((late, next_late), (report, calls)) = (channel(), channel());
        thread::spawn(move || {
            let client = listener.accept().unwrap().0;
            let (receive, commands) = channel();
            let sender = client.try_clone().unwrap();
            // Both end with the connection.
            thread::spawn(move || read(sender, &receive, &report));
            let _ = Serving { client, server, commands, waiting: VecDeque::new() }.run(&next_late);
        });
        Self { url, late, calls }
    }
}

/// The words of a command.
type Command = Vec<Vec<u8>>;

fn is_script(command: &Command) -> bool {
    command[0].starts_with(b"EVAL")
}

fn read(mut client: TcpStream, receive: &Sender<Command>, report: &Sender<()>) -> Option<()> {
    let mut commands = Parser::new();
    loop {
        let command: Command = redis::from_redis_value(commands.parse_value(&mut client).ok()?).ok()?;
        if is_script(&command) {
            report.send(()).ok()?;
        }
        receive.send(command).ok()?;
    }
}

struct Serving {
    client: TcpStream,
    server: TcpStream,
    commands: Receiver<Command>,
    /// Commands that have arrived, oldest first.
    waiting: VecDeque<Command>,
}

impl Serving {
    fn run(&mut self, late: &Receiver<Late>) -> RedisResult<()> {
        loop {
            let Some(command) = self.waiting.pop_front().or_else(|| self.commands.recv().ok()) else {
                return Ok(());
            };
            let late = if is_script(&command) { late.try_recv().ok() } else { None };
            let reply = match late {
                Some(Late::Say(reply)) => reply.into(),
                _ => self.reply_of_server(command)?,
            };
            if late.is_some() {
                self.await_script_call();
            }
            self.client.write_all(&reply)?;
        }
    }

    fn await_script_call(&mut self) {
        while !self.waiting.iter().any(is_script)
            && let Ok(command) = self.commands.recv()
        {
            self.waiting.push_back(command);
        }
    }

    fn reply_of_server(&mut self, words: Command) -> RedisResult<Vec<u8>> {
        let mut command = Cmd::new();
        self.server.write_all(&command.arg(words).get_packed_command())?;
        let mut reply = Recorder { from: &self.server, bytes: Vec::new() };
        // One command at a time, so all that arrives is its reply.
        let _: RedisResult<Value> = Parser::new().parse_value(&mut reply);
        Ok(reply.bytes)
    }
}

/// Keeps what it reads.
struct Recorder<'a> {
    from: &'a TcpStream,
    bytes: Vec<u8>,
}

impl Read for Recorder<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.from.read(buffer)?;
        self.bytes.extend_from_slice(&buffer[..length]);
        Ok(length)
    }
}

/// Shuts a limiter down while a group acquires a unit. The first message of the group and the first report of the
/// shutdown get these replies. So the second message, with a higher number than the report, arrives meanwhile.
async fn assert_that_nothing_is_held(late: [Late; 2]) {
    let server = Server::process(&[]).unwrap();
    let proxy = LateReplies::of(&server);
    let namespace = namespace();
    let limiter = |url: &str| {
        let builder = builder(url).namespace(&namespace).follow_overrides(false).instances(1);
        // Longer than the test: heartbeats would disturb the proxy, and a lapse would release the units.
        builder.permit_ttl(Duration::from_secs(60)).build().unwrap()
    };
    let (ending, other) = (limiter(&proxy.url), limiter(server.url()));
    let quota = Quota::in_flight(5);
    let (gate, seen) = (ending.gate("gate", quota), other.gate("gate", quota));
    // Opens the lease.
    gate.acquire("x").await.unwrap().permit().unwrap().release().await.unwrap();
    assert!(proxy.calls.try_iter().count() > 0);
    late.into_iter().for_each(|late| proxy.late.send(late).unwrap());
    let acquiring = tokio::spawn({
        let (ending, check) = (ending.clone(), gate.key("x"));
        async move { ending.acquire_all([check]).await }
    });
    let calls = tokio::task::spawn_blocking(move || {
        proxy.calls.recv_timeout(PATIENCE).expect("the message of the group");
        proxy
    });
    let _proxy = calls.await.unwrap();
    ending.shutdown().await;
    assert!(acquiring.await.unwrap().unwrap().is_allowed(), "Redis admitted it");
    assert_eq!(remaining(&seen, "x").await, 5);
}

/// The report is sent again, after the message.
#[tokio::test]
async fn shutdown_releases_what_a_message_acquires_before_its_report() {
    assert_that_nothing_is_held([Late::Say(STALE), Late::Say(NOSCRIPT)]).await;
}

#[tokio::test]
async fn shutdown_releases_what_a_message_acquires_after_its_report() {
    assert_that_nothing_is_held([Late::Say(STALE), Late::OfServer]).await;
}
