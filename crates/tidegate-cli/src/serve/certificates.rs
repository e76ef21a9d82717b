//! The certificates of the gRPC port. They are read again when their files change.

use std::time::Duration;

use tidegate_server::Tls;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::args::Connections;
use crate::failure::Failure;
use crate::option_file::OptionFile;
use crate::output::{inform, warn};

/// The time between two readings of the files. A change takes effect once two readings in a row are equal, since a
/// certificate and its key are two files.
const INTERVAL: Duration = Duration::from_secs(1);

/// The files of a certificate.
#[derive(Debug)]
struct CertificateFiles {
    certificate: OptionFile,
    key: OptionFile,
    client_ca: Option<OptionFile>,
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
        let client_ca = connections.grpc_client_ca.as_deref();
        let mut files = CertificateFiles {
            certificate: OptionFile::new("--grpc-certificate", certificate),
            key: OptionFile::new("--grpc-key", key),
            client_ca: client_ca.map(|path| OptionFile::new("--grpc-client-ca", path)),
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
        let Self { mut files, contents, tls } = self;
        if !files.are_regular() {
            return;
        }
        let mut applied = Ok(contents);
        let mut last = applied.clone();
        loop {
            sleep(INTERVAL).await;
            let reading = spawn_blocking(move || {
                let read = files.read().map_err(|error| error.to_string());
                (files, read)
            });
            let Ok((returned, read)) = reading.await else { return };
            files = returned;
            if read != last {
                last = read;
            } else if last != applied {
                let newer =
                    last.clone().and_then(|contents| files.tls(&contents).map_err(|error| error.to_string()));
                match newer {
                    Ok(newer) => {
                        tls.replace(&newer);
                        inform(json, "certificates reloaded: new connections use them");
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
    fn read(&mut self) -> Result<Contents, Failure> {
        Ok(Contents {
            certificate: self.certificate.read(self.timeout)?,
            key: self.key.read(self.timeout)?,
            client_ca: self.client_ca.as_mut().map(|file| file.read(self.timeout)).transpose()?,
        })
    }

    fn tls(&self, contents: &Contents) -> Result<Tls, Failure> {
        let Contents { certificate, key, client_ca } = contents;
        let tls = match client_ca {
            None => Tls::new(certificate, key),
            Some(ca) => Tls::mutual(certificate, key, ca, &self.client_names),
        };
        tls.map_err(|error| {
            let files = [&self.certificate, &self.key].into_iter().chain(&self.client_ca);
            let files: Vec<String> = files.map(OptionFile::shown).collect();
            Failure::usage(format!("{error}: check {}", files.join(", ")))
        })
    }

    fn are_regular(&self) -> bool {
        let mut files = [&self.certificate, &self.key].into_iter().chain(&self.client_ca);
        files.all(|file| file.path().is_file())
    }
}
