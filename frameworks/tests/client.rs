//! A client that sends requests from an address of its choice.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// The status line and the headers, as received.
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn parse(reply: &str) -> Self {
        let (head, body) = reply.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no response: {reply:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self { status, head: head.to_owned(), body: body.to_owned() }
    }

    /// Returns the value of a header that the response has once at most.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let headers = self.head.lines().skip(1).map(|line| line.split_once(": ").unwrap());
        let mut values = headers.filter(|header| header.0.eq_ignore_ascii_case(name));
        let first = values.next();
        assert!(values.next().is_none(), "{name} twice: {self:?}");
        first.map(|(_, value)| value)
    }
}

/// A connection to a server.
pub(crate) struct Connection(BufReader<TcpStream>);

impl Connection {
    /// Connects from a loopback address.
    pub(crate) async fn open(server: SocketAddr, from: impl Into<IpAddr>) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(from.into(), 0)).unwrap();
        Self(BufReader::new(socket.connect(server).await.unwrap()))
    }

    pub(crate) async fn send(&mut self, request: &str) {
        self.0.write_all(request.as_bytes()).await.unwrap();
    }

    /// Reads until the text ends with this.
    pub(crate) async fn read_until(&mut self, end: &str) -> String {
        let mut reply = String::new();
        while !reply.ends_with(end) {
            reply.push(self.0.read_u8().await.unwrap().into());
        }
        reply
    }

    /// Reads until the server closes the connection.
    pub(crate) async fn read_to_end(mut self) -> Reply {
        let mut reply = String::new();
        let closed = timeout(Duration::from_secs(20), self.0.read_to_string(&mut reply)).await;
        closed.expect("the server keeps the connection").unwrap();
        Reply::parse(&reply)
    }
}

/// Sends a GET from a loopback address.
pub(crate) async fn get(
    server: SocketAddr,
    from: impl Into<IpAddr>,
    path: &str,
    headers: &[(&str, &str)],
) -> Reply {
    let mut request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    let mut connection = Connection::open(server, from).await;
    connection.send(&format!("{request}\r\n")).await;
    connection.read_to_end().await
}
