//! Part of a hand-written server.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Reads from a client until it has sent `word`.
pub async fn hear(client: &mut TcpStream, word: &str) {
    let (mut received, mut bytes) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&received).contains(word) {
        let read = client.read(&mut bytes).await.unwrap();
        assert!(read > 0, "no {word} in {:?}", String::from_utf8_lossy(&received));
        received.extend_from_slice(&bytes[..read]);
    }
}

/// Accepts a connection, and closes it when it has carried a call.
pub async fn end_before_a_reply(listener: &TcpListener) {
    let (mut connection, _) = listener.accept().await.unwrap();
    hear(&mut connection, "PING").await;
    connection.write_all(b"+PONG\r\n").await.unwrap();
    hear(&mut connection, "EVALSHA").await;
}

/// Accepts a connection, and forwards it to a server until it ends.
pub async fn lead_to(listener: &TcpListener, port: u16) {
    let (mut from, _) = listener.accept().await.unwrap();
    let mut to = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    tokio::spawn(async move { tokio::io::copy_bidirectional(&mut from, &mut to).await });
}
