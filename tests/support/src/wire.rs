//! A TCP proxy to a server that can replace the replies to script calls with any bytes.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use redis::{Parser, Value};

/// The reply to a script call. The server replies to all other commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    OfServer,
    Say(Vec<u8>),
    /// Sends the first bytes once, then the second bytes repeatedly.
    Endless(&'static [u8], &'static [u8]),
    HangUp,
    /// Ends the direction to the client. The proxy still reads from the client.
    HalfClose,
    Silence,
}

/// A proxy on its own threads, because the runtime of the caller may be blocked. Supports one call at a time.
pub struct Wire {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    server: String,
    answer: Mutex<Answer>,
    calls: AtomicU64,
    connections: AtomicU64,
    ended: AtomicU64,
    is_over: AtomicBool,
}

impl Wire {
    /// Starts a proxy to the server at `redis://127.0.0.1:PORT`.
    pub fn to(url: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            server: url.trim_start_matches("redis://").to_owned(),
            answer: Mutex::new(Answer::OfServer),
            calls: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let accepting = shared.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.is_over.load(Ordering::SeqCst) {
                    return;
                }
                let (client, shared) = (client.unwrap(), accepting.clone());
                shared.connections.fetch_add(1, Ordering::SeqCst);
                thread::spawn(move || {
                    // An error only ends the connection.
                    let _ = shared.serve(&client);
                    let _ = client.shutdown(Shutdown::Both);
                    shared.ended.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        Self { address, shared }
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    pub fn answer(&self, answer: Answer) {
        *self.shared.answer.lock().unwrap() = answer;
    }

    /// Returns the number of script calls that clients sent.
    pub fn calls(&self) -> u64 {
        self.shared.calls.load(Ordering::SeqCst)
    }

    /// Returns the number of accepted connections.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Returns the number of connections that have not ended.
    pub fn open(&self) -> u64 {
        let ended = self.shared.ended.load(Ordering::SeqCst);
        self.connections() - ended
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn serve(&self, mut client: &TcpStream) -> redis::RedisResult<()> {
        client.set_nodelay(true)?;
        let mut server = TcpStream::connect(&self.server)?;
        let (mut replies, to_client) = (server.try_clone()?, client.try_clone()?);
        thread::spawn(move || {
            let _ = io::copy(&mut replies, &mut &to_client);
            let _ = to_client.shutdown(Shutdown::Both);
        });
        // If the server or the client ends its connection, the proxy ends the other one.
        let served = self.forward(&mut client, &mut server);
        let _ = server.shutdown(Shutdown::Both);
        served
    }

    fn forward(&self, client: &mut &TcpStream, server: &mut TcpStream) -> redis::RedisResult<()> {
        let mut commands = Parser::new();
        loop {
            let words = match commands.parse_value(&mut *client)? {
                Value::Array(words) => words,
                other => panic!("not a command: {other:?}"),
            };
            let words: Vec<Vec<u8>> =
                words.into_iter().map(redis::from_redis_value).collect::<Result<_, _>>()?;
            let is_script = words[0].starts_with(b"EVAL");
            self.calls.fetch_add(u64::from(is_script), Ordering::SeqCst);
            let answer = if is_script { self.answer.lock().unwrap().clone() } else { Answer::OfServer };
            match answer {
                Answer::OfServer => {
                    let mut command = redis::Cmd::new();
                    command.arg(words);
                    server.write_all(&command.get_packed_command())?;
                }
                Answer::Say(bytes) => client.write_all(&bytes)?,
                Answer::Endless(first, again) => {
                    client.write_all(first)?;
                    loop {
                        client.write_all(again)?;
                        // Imitates a slow network, so the reply does not fill the memory at once.
                        thread::sleep(Duration::from_micros(100));
                    }
                }
                Answer::HangUp => return Ok(()),
                Answer::HalfClose => client.shutdown(Shutdown::Write)?,
                Answer::Silence => {
                    io::copy(&mut Read::by_ref(client), &mut io::sink())?;
                    return Ok(());
                }
            }
        }
    }
}
