//! A server by hand.

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// Reads until a client has said this.
pub(crate) async fn hear(client: &mut TcpStream, word: &str) {
    let (mut said, mut bytes) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&said).contains(word) {
        let read = client.read(&mut bytes).await.unwrap();
        assert!(read > 0, "no {word} in {:?}", String::from_utf8_lossy(&said));
        said.extend_from_slice(&bytes[..read]);
    }
}
