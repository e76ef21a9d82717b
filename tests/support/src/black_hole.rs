//! A server that accepts connections and never sends a reply.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::net::TcpListener;

pub struct BlackHole {
    pub url: String,
    taken: Arc<AtomicUsize>,
}

impl BlackHole {
    /// Returns the number of accepted connections.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::SeqCst)
    }
}

pub async fn black_hole() -> BlackHole {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let taken = Arc::new(AtomicUsize::new(0));
    let count = taken.clone();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((connection, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            open.push(connection);
        }
    });
    BlackHole { url, taken }
}
