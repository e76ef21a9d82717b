//! Messages of any bytes, and clients without a library.

use std::convert::Infallible;
use std::net::SocketAddr;

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::bytes::{Buf, BufMut};
use tokio::net::{TcpSocket, TcpStream};
use tonic::client::Grpc;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// The path of the only method.
pub const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// The beginning of an HTTP/2 connection, and empty settings.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Sends messages of any bytes to the gRPC port.
pub struct RawClient(Grpc<Channel>);

impl RawClient {
    pub async fn connect(address: SocketAddr) -> Self {
        Self(Grpc::new(Endpoint::try_from(format!("http://{address}")).unwrap().connect().await.unwrap()))
    }

    pub async fn send(&mut self, message: Vec<u8>) -> Result<(), Status> {
        self.0.ready().await.unwrap();
        let path = http::uri::PathAndQuery::from_static(METHOD);
        self.0.unary(tonic::Request::new(message), path, Raw).await.map(drop)
    }
}

/// Sends the body of a gRPC request on a connection of its own, and returns the status of the response.
pub async fn send_body<B>(address: SocketAddr, body: B) -> Code
where
    B: Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static,
{
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::post(format!("http://{address}{METHOD}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(body)
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    let in_head = response.headers().get("grpc-status").cloned();
    let trailers = response.into_body().collect().await.unwrap().trailers().cloned();
    Code::from_bytes(in_head.or_else(|| trailers?.get("grpc-status").cloned()).unwrap().as_bytes())
}

/// Connects with the smallest receive buffer: what this client does not read soon blocks the server's writes.
pub async fn connect_narrow(address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(1).unwrap();
    socket.connect(address).await.unwrap()
}

#[derive(Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = ();
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put_slice(&item);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::default()
    }
}

impl Decoder for Raw {
    type Item = ();
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
        from.advance(from.remaining());
        Ok(Some(()))
    }
}
