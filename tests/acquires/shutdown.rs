//! A shutdown while a message is on its way to Redis.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use redis::{Cmd, Parser, RedisResult, Value};
use tidegate::{Error, Event, Gate, Limiter, Observer, Permit, Quota};
use tidegate_testkit::Server;

use super::remaining;
use crate::support::acquired::AcquiredParts;
use crate::support::fixture::{builder, namespace, soon};

/// The reply to a script call. Unless it names another time, the proxy returns it after the client's next script call
/// has arrived.
enum Late {
    OfServer,
    OfServerAfter(Receiver<()>),
    Say(&'static str),
    SayAtOnce(&'static str),
}

// With a time to come: a time in the past would bound the next call, and Redis would refuse it as late.
const STALE: &str = "*2\r\n:4000000000000000\r\n$13\r\nSTALE message\r\n";
const LAPSED: &str = "*2\r\n:4000000000000000\r\n$12\r\nLAPSED lease\r\n";
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
                Some(Late::Say(reply) | Late::SayAtOnce(reply)) => reply.into(),
                _ => self.reply_of_server(command)?,
            };
            match late {
                Some(Late::OfServer | Late::Say(_)) => self.await_script_call(),
                Some(Late::OfServerAfter(signal)) => drop(signal.recv()),
                Some(Late::SayAtOnce(_)) | None => {}
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

#[derive(Clone, Default)]
struct Lapsed(Arc<AtomicU64>);

impl Observer for Lapsed {
    fn on(&self, event: &Event<'_>) {
        if let Event::PermitsLapsed { units, .. } = *event {
            self.0.fetch_add(units, Ordering::SeqCst);
        }
    }
}

/// A limiter that holds a permit of `x`, and another one that observes it.
struct Scene {
    proxy: LateReplies,
    ending: Limiter,
    gate: Gate,
    permit: Permit,
    lapsed: Lapsed,
    seen: Gate,
    _server: Server,
}

impl Scene {
    async fn new() -> Self {
        let server = Server::process(&[]).unwrap();
        let proxy = LateReplies::of(&server);
        let (namespace, lapsed) = (namespace(), Lapsed::default());
        let limiter = |url: &str| {
            let builder = builder(url)
                .namespace(&namespace)
                .follow_overrides(false)
                .instances(1)
                .publish_figures(false);
            // Longer than the test: heartbeats would disturb the proxy, and a lapse would release the units.
            let builder = builder.permit_ttl(Duration::from_secs(60));
            builder.observer(lapsed.clone()).build().unwrap()
        };
        let (ending, other) = (limiter(&proxy.url), limiter(server.url()));
        let quota = Quota::in_flight(5);
        let (gate, seen) = (ending.gate("gate", quota), other.gate("gate", quota));
        // Opens the lease.
        let permit = gate.acquire("x").await.unwrap().permit().unwrap();
        assert!(proxy.calls.try_iter().count() > 0);
        Self { proxy, ending, gate, permit, lapsed, seen, _server: server }
    }

    /// Shuts the limiter down while it acquires another unit. The script calls from that message on get these replies.
    async fn shut_down<T: Send + 'static>(
        self,
        late: impl IntoIterator<Item = Late>,
        acquire: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let Self { proxy, ending, permit, lapsed, seen, .. } = &self;
        late.into_iter().for_each(|late| proxy.late.send(late).unwrap());
        let acquiring = tokio::spawn(acquire);
        soon("the message arrives", async || proxy.calls.try_recv().is_ok()).await;
        ending.shutdown().await;
        let acquired = acquiring.await.unwrap();
        assert_eq!(remaining(seen, "x").await, 5);
        assert!(!permit.is_held());
        assert_eq!(lapsed.0.load(Ordering::SeqCst), 0, "the shutdown ended the lease: it did not lapse");
        acquired
    }

    async fn shut_down_a_group(self, late: impl IntoIterator<Item = Late>) -> Result<bool, Error> {
        let (ending, check) = (self.ending.clone(), self.gate.key("x"));
        let acquire = async move { ending.acquire_all([check]).await.map(|all| all.is_allowed()) };
        self.shut_down(late, acquire).await
    }

    async fn shut_down_an_acquire(self, late: impl IntoIterator<Item = Late>) -> Result<bool, Error> {
        let gate = self.gate.clone();
        let acquire = async move { gate.acquire("x").await.map(|acquired| acquired.is_allowed()) };
        self.shut_down(late, acquire).await
    }
}

/// The second message of the group has a higher number than the report, which is sent again after the message.
#[tokio::test]
async fn shutdown_releases_what_a_group_acquires_before_its_report() {
    let late = [Late::Say(STALE), Late::Say(NOSCRIPT)];
    assert!(Scene::new().await.shut_down_a_group(late).await.unwrap(), "Redis admitted it");
}

#[tokio::test]
async fn shutdown_releases_what_a_group_acquires_after_its_report() {
    let late = [Late::Say(STALE), Late::OfServer];
    assert!(Scene::new().await.shut_down_a_group(late).await.unwrap(), "Redis admitted it");
}

/// The second message of the group is sent again after the end of the lease. The error is that of the shutdown, or that
/// of Redis if the group sends its last message before this process knows that the lease has ended.
#[tokio::test]
async fn group_that_arrives_after_the_end_of_the_lease_acquires_nothing_and_no_permit_lapses() {
    let late = [Late::Say(STALE), Late::OfServer, Late::Say(NOSCRIPT)];
    let error = Scene::new().await.shut_down_a_group(late).await.unwrap_err();
    assert!(error.is_shut_down() || error.is_unavailable(), "{error}");
}

#[tokio::test]
async fn shutdown_releases_what_an_acquire_in_flight_takes_before_its_report() {
    let error = Scene::new().await.shut_down_an_acquire([Late::OfServer]).await.unwrap_err();
    assert!(error.is_shut_down(), "{error}");
}

/// The message is sent again after the report, whose number is higher.
#[tokio::test]
async fn acquire_that_arrives_after_the_report_of_a_shutdown_takes_nothing() {
    let late = [Late::Say(NOSCRIPT), Late::OfServer];
    let error = Scene::new().await.shut_down_an_acquire(late).await.unwrap_err();
    assert!(error.is_shut_down(), "{error}");
}

/// After a lapse, `x` reports its unit while the acquire of another gate opens the next lease.
#[tokio::test]
async fn no_message_is_sent_under_a_lease_that_is_opened_during_a_shutdown() {
    let scene = Scene::new().await;
    let (open, is_open) = channel();
    for late in [Late::SayAtOnce(LAPSED), Late::OfServerAfter(is_open)] {
        scene.proxy.late.send(late).unwrap();
    }
    let other = scene.ending.gate("other", Quota::in_flight(5));
    let acquiring =
        tokio::spawn(async move { other.acquire("x").await.map(|acquired| acquired.is_allowed()) });
    for call in ["the message arrives", "the opening of the lease arrives"] {
        soon(call, async || scene.proxy.calls.try_recv().is_ok()).await;
    }
    let ending = scene.ending.clone();
    let shutdown = tokio::spawn(async move { ending.shutdown().await });
    assert!(acquiring.await.unwrap().unwrap_err().is_shut_down(), "the shutdown has begun");
    open.send(()).unwrap();
    shutdown.await.unwrap();
    let calls = scene.proxy.calls.try_iter().count();
    assert!((2..=3).contains(&calls), "{calls} calls: reports, the end of the lease, and reports again");
}
