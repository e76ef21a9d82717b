//! Part of a hand-written server.

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// Reads from a client until it has sent `word`.
pub async fn hear(client: &mut TcpStream, word: &str) {
    let (mut received, mut bytes) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&received).contains(word) {
        let read = client.read(&mut bytes).await.unwrap();
        assert!(read > 0, "no {word} in {:?}", String::from_utf8_lossy(&received));
        received.extend_from_slice(&bytes[..read]);
    }
}
