//! The certificates of the gRPC port. They are read again when their files change.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tidegate_server::Tls;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::args::Connections;
use crate::failure::Failure;
use crate::option_file;
use crate::output::warn;

/// The time between two readings of the files. A change takes effect once two readings in a row are equal, since a
/// certificate and its key are two files.
const INTERVAL: Duration = Duration::from_secs(1);

/// The files of a certificate.
#[derive(Clone, Debug)]
struct CertificateFiles {
    certificate: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
    client_names: Vec<String>,
    timeout: Duration,
}

/// The contents of the files.
#[derive(Clone, PartialEq, Eq)]
struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

/// The certificates, from their files.
pub(crate) struct Certificates {
    files: CertificateFiles,
    contents: Contents,
    tls: Tls,
}

impl Certificates {
    /// Reads the files of the arguments. Returns `None` if there are none.
    pub(crate) fn load(connections: &Connections, timeout: Duration) -> Result<Option<Self>, Failure> {
        let (Some(certificate), Some(key)) = (&connections.grpc_certificate, &connections.grpc_key) else {
            return Ok(None);
        };
        let files = CertificateFiles {
            certificate: certificate.clone(),
            key: key.clone(),
            client_ca: connections.grpc_client_ca.clone(),
            client_names: connections.grpc_client_san.clone(),
            timeout,
        };
        let contents = files.read()?;
        let tls = files.tls(&contents)?;
        Ok(Some(Self { files, contents, tls }))
    }

    pub(crate) fn tls(&self) -> Tls {
        self.tls.clone()
    }

    /// Replaces the certificates when their files change, and reports it. Never ends, unless a file can be read only
    /// once, as a pipe.
    pub(crate) async fn follow(self, json: bool) {
        let Self { files, contents, tls } = self;
        if !files.are_regular() {
            return;
        }
        let mut applied = Ok(contents);
        let mut last = applied.clone();
        loop {
            sleep(INTERVAL).await;
            let reader = files.clone();
            let Ok(read) = spawn_blocking(move || reader.read().map_err(|error| error.to_string())).await
            else {
                return;
            };
            if read != last {
                last = read;
            } else if last != applied {
                let newer =
                    last.clone().and_then(|contents| files.tls(&contents).map_err(|error| error.to_string()));
                match newer {
                    Ok(newer) => {
                        tls.replace(&newer);
                        warn(json, "certificates reloaded: new connections use them");
                    }
                    Err(error) => {
                        warn(json, &format!("certificates not reloaded, the previous ones remain: {error}"));
                    }
                }
                applied.clone_from(&last);
            }
        }
    }
}

impl CertificateFiles {
    fn read(&self) -> Result<Contents, Failure> {
        let read = |option: &str, path: &Path| option_file::read(option, path, self.timeout);
        Ok(Contents {
            certificate: read("--grpc-certificate", &self.certificate)?,
            key: read("--grpc-key", &self.key)?,
            client_ca: self.client_ca.as_deref().map(|path| read("--grpc-client-ca", path)).transpose()?,
        })
    }

    fn tls(&self, contents: &Contents) -> Result<Tls, Failure> {
        let Contents { certificate, key, client_ca } = contents;
        Ok(match client_ca {
            None => Tls::new(certificate, key)?,
            Some(ca) => Tls::mutual(certificate, key, ca, &self.client_names)?,
        })
    }

    fn are_regular(&self) -> bool {
        let mut paths = [&self.certificate, &self.key].into_iter().chain(&self.client_ca);
        paths.all(|path| path.is_file())
    }
}
