//! Builds a limiter from the arguments.

use std::env;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate::{Builder, KeyMode, Limiter};
use tokio::task::{JoinError, spawn_blocking};

use crate::args::Redis;
use crate::failure::Failure;
use crate::option_file::OptionFile;
use crate::redis_url::RedisUrl;
use crate::{option_file, output};

pub(crate) const VARIABLE: &str = "TIDEGATE_REDIS_URL";
pub(crate) const PASSWORD_VARIABLE: &str = "TIDEGATE_REDIS_PASSWORD";
const DEFAULT: &str = "redis://127.0.0.1:6379";

impl Redis {
    /// Returns a limiter that reports errors of Redis, and whose overrides cannot change before the program
    /// exits. The program is not an instance of the service.
    pub(crate) fn limiter(&self, json: bool) -> Result<Limiter, Failure> {
        let builder = self.builder(json)?.deadline(self.timeout).operator_deadline(self.timeout).strict();
        // The program prints the error itself.
        Ok(builder.stderr_warnings(false).build()?)
    }

    /// Returns a builder for the Redis server of the arguments, with the defaults of a service.
    pub(crate) fn builder(&self, json: bool) -> Result<Builder, Failure> {
        let urls = self.given_urls();
        urls.iter().try_for_each(|url| self.ensure_valid(url))?;
        self.warn_of_password(json);
        let mut builder = Limiter::builder().namespace(&self.namespace);
        builder = match (&self.sentinel, &urls[..]) {
            (Some(name), urls) => builder.sentinel(urls.iter().map(RedisUrl::secret), name),
            (None, urls) if self.cluster => builder.cluster(urls.iter().map(RedisUrl::secret)),
            (None, [url]) => builder.url(url.secret()),
            (None, _) => {
                return Err(Failure::usage("several URLs require --sentinel or --cluster: add one of them"));
            }
        };
        let user = self.user.as_deref().unwrap_or("default");
        let password = self.environment_login().or_else(|| {
            let password = self.password.as_ref()?;
            Some((user.to_owned(), password.secret().to_owned()))
        });
        match (&self.password_file, password) {
            (Some(path), _) => {
                option_file::warn_of_readers("--password-file", path, json);
                builder = log_in(builder, user, path, self.timeout)?;
            }
            (None, Some((user, password))) => builder = builder.credentials(&user, &password),
            (None, None) if self.user.is_some() => {
                return Err(Failure::usage(format!(
                    "--user requires a password: add --password-file FILE, or set {PASSWORD_VARIABLE} and remove \
                     the login from the URL of --redis"
                )));
            }
            (None, None) => {}
        }
        if let Some(path) = &self.hmac_secret_file {
            option_file::warn_of_readers("--hmac-secret-file", path, json);
            builder = builder.key_mode(KeyMode::Hmac(self.read("--hmac-secret-file", path)?));
        }
        if let Some(path) = &self.tls_ca {
            builder = builder.tls_ca(&self.read("--tls-ca", path)?);
        }
        if let (Some(certificate), Some(key)) = (&self.tls_certificate, &self.tls_key) {
            option_file::warn_of_readers("--tls-key", key, json);
            let certificate = self.read("--tls-certificate", certificate)?;
            builder = builder.tls_client_certificate(&certificate, &self.read("--tls-key", key)?);
        }
        Ok(builder)
    }

    /// Returns the tried URLs, without passwords, and if no server answered, how to use another one.
    pub(crate) fn tried_servers(&self, failure: &Failure) -> String {
        let urls = self.given_urls();
        let tried: Vec<String> = urls.iter().map(RedisUrl::with_port).collect();
        let database = match failure.to_string().contains("DB index is out of range") {
            true => urls.iter().find_map(RedisUrl::database),
            false => None,
        };
        let advice = match (database, failure.is_answer()) {
            (Some(database), _) => {
                format!("; Redis has no database {database}: end the URL with another one, such as /0")
            }
            (None, true) => String::new(),
            (None, false) => format!("; set --redis or {VARIABLE} to use another server"),
        };
        format!("\ntried {}{advice}", tried.join(" "))
    }

    /// Returns the URLs of the arguments, else of the environment, else the default.
    pub(crate) fn given_urls(&self) -> Vec<RedisUrl> {
        if !self.urls.is_empty() {
            return self.urls.clone();
        }
        let variable = env::var(VARIABLE).unwrap_or_default();
        let urls: Vec<RedisUrl> = variable.split_whitespace().map(RedisUrl::from).collect();
        if urls.is_empty() { vec![DEFAULT.into()] } else { urls }
    }

    /// Rejects a URL that is not valid, with the option that has it. The core does not know the options.
    fn ensure_valid(&self, url: &RedisUrl) -> Result<(), Failure> {
        let Some((cause, advice)) = url.mistake() else { return Ok(()) };
        let origin = match (self.urls.is_empty(), self.urls_are_hidden) {
            (true, _) => VARIABLE,
            (false, true) => "the setting `redis`",
            (false, false) => "--redis",
        };
        let advice = advice.unwrap_or_else(|| {
            format!(
                "write such as {DEFAULT}; percent-encode a user and a password, or use --user and --password-file"
            )
        });
        Err(Failure::usage(format!("the Redis URL {url} of {origin} cannot be used ({cause}): {advice}")))
    }

    /// Warns about a password in the arguments.
    fn warn_of_password(&self, json: bool) {
        if !self.urls_are_hidden && self.urls.iter().any(RedisUrl::may_have_password) {
            output::warn(
                json,
                &format!(
                    "every user of this machine can see the password in --redis (`ps`): put the password into \
                     a file for --password-file or into {PASSWORD_VARIABLE}, or the URL into {VARIABLE}"
                ),
            );
        }
    }

    /// Returns the password of the environment and its user: that of `--user`, else the one that the URL has without a
    /// password. The password is not for the server of a flag with a login, which may be another one. Of a
    /// setting, only a password in the URL precedes it.
    pub(crate) fn environment_login(&self) -> Option<(String, String)> {
        let password = env::var(PASSWORD_VARIABLE).ok().filter(|password| !password.is_empty())?;
        // The login in the URLs of sentinels is not that of Redis.
        let is_for_sentinels = self.sentinel.is_some();
        let precedes = |url: &RedisUrl| match (url.login(), self.urls_are_hidden) {
            ((_, password), true) => password.is_some() && !is_for_sentinels,
            (login, false) => login != (None, None),
        };
        if self.urls.iter().any(precedes) {
            return None;
        }
        let of_url = || match self.given_urls().first()?.login() {
            (user, None) if !is_for_sentinels => user,
            _ => None,
        };
        let user = self.user.clone().or_else(of_url).unwrap_or_else(|| "default".to_owned());
        Some((user, password))
    }

    /// Reads the file of an option of the program, within the timeout.
    pub(crate) fn read(&self, option: &str, path: &Path) -> Result<Vec<u8>, Failure> {
        option_file::read(option, path, self.timeout)
    }
}

// The password of Redis in a file, which can change while the program runs.

const OPTION: &str = "--password-file";

/// How long a connection waits for the file, which may be on an unreachable file server.
const PATIENCE: Duration = Duration::from_millis(100);

/// The file of `--password-file`.
struct PasswordFile {
    file: OptionFile,
    /// The password that was read last.
    password: String,
}

/// Gives a builder the password of a file. It is read again for each new connection, unless it can be read only once, as a
/// pipe.
pub(crate) fn log_in(
    builder: Builder,
    user: &str,
    path: &Path,
    timeout: Duration,
) -> Result<Builder, Failure> {
    let file = OptionFile::new(OPTION, path);
    let mut file = PasswordFile { file, password: String::new() };
    file.read(timeout)?;
    if !path.is_file() {
        return Ok(builder.credentials(user, &file.password));
    }
    let (user, file) = (user.to_owned(), Arc::new(Mutex::new(file)));
    Ok(builder.credentials_provider(move || {
        let (user, file) = (user.clone(), file.clone());
        async move {
            let password =
                spawn_blocking(move || file.lock().unwrap_or_else(PoisonError::into_inner).newest());
            Ok::<_, JoinError>((user, password.await?))
        }
    }))
}

impl PasswordFile {
    fn read(&mut self, timeout: Duration) -> Result<(), Failure> {
        let password = String::from_utf8(self.file.read(timeout)?)
            .map_err(|_| Failure::usage(format!("the file of {OPTION} is not text in UTF-8")))?;
        let password = password.trim_end_matches(['\r', '\n']);
        // A program that writes a new password may have emptied the file first.
        if password.is_empty() {
            return Err(Failure::usage(format!("the file of {OPTION} is empty: write the password into it")));
        }
        password.clone_into(&mut self.password);
        Ok(())
    }

    /// Returns the password of the file; the last one while the file is empty or cannot be read. Redis reports a wrong one.
    fn newest(&mut self) -> String {
        let _ = self.read(PATIENCE);
        self.password.clone()
    }
}
