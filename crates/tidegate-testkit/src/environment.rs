//! The environment variables that lib.rs documents.

use std::{
    env,
    path::{Path, PathBuf},
};

use crate::Error;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Container,
    Process,
}

pub(crate) fn forced_kind() -> Result<Option<Kind>, Error> {
    match set("TIDEGATE_REDIS").as_deref() {
        None => Ok(server().map(|_| Kind::Process)),
        Some("container") if server().is_some() => Err(Error::Setting {
            name: "TIDEGATE_REDIS",
            value: "container".to_owned(),
            expected: "process, since TIDEGATE_REDIS_SERVER is set",
        }),
        Some("container") => Ok(Some(Kind::Container)),
        Some("process") => Ok(Some(Kind::Process)),
        Some(value) => Err(Error::Setting {
            name: "TIDEGATE_REDIS",
            value: value.to_owned(),
            expected: "container or process",
        }),
    }
}

/// Returns the program to start instead of `redis-server`.
pub(crate) fn server() -> Option<String> {
    set("TIDEGATE_REDIS_SERVER")
}

/// Returns the image's name and tag.
pub(crate) fn image() -> (String, String) {
    let image = set("TIDEGATE_REDIS_IMAGE").unwrap_or_else(|| "redis:7.0-local".to_owned());
    match image.rsplit_once(':') {
        // A colon before a slash belongs to the registry's port.
        Some((name, tag)) if !tag.contains('/') => (name.to_owned(), tag.to_owned()),
        _ => (image, "latest".to_owned()),
    }
}

/// Returns the id by which scripts/test finds the containers and folders of its run.
pub(crate) fn run() -> String {
    set("TIDEGATE_RUN").unwrap_or_else(|| std::process::id().to_string())
}

pub(crate) fn report() -> Option<String> {
    set("TIDEGATE_REPORT")
}

pub(crate) const URL: &str = "TIDEGATE_REDIS_URL";

pub(crate) fn url() -> Option<String> {
    set(URL)
}

pub(crate) fn ci() -> bool {
    set("CI").is_some_and(|ci| ci != "false")
}

/// Returns the URL at which testcontainers looks for the engine.
pub(crate) fn docker_host() -> String {
    set("DOCKER_HOST").unwrap_or_else(|| {
        let socket = |folder: &str, path| set(folder).map(|folder| folder + path);
        [
            Some("/var/run/docker.sock".to_owned()),
            socket("XDG_RUNTIME_DIR", "/.docker/run/docker.sock"),
            socket("HOME", "/.docker/run/docker.sock"),
            socket("HOME", "/.docker/desktop/docker.sock"),
        ]
        .into_iter()
        .flatten()
        .find(|socket| Path::new(socket).exists())
        .map_or_else(|| "unix:///var/run/docker.sock".to_owned(), |socket| format!("unix://{socket}"))
    })
}

/// Finds a program in the PATH, or in this folder of the target directory of this executable.
pub(crate) fn program(name: &str, folder: &str) -> Option<PathBuf> {
    if on_path(name) {
        return Some(name.into());
    }
    let executable = env::current_exe().ok()?;
    executable.ancestors().map(|target| target.join(folder).join(name)).find(|program| program.is_file())
}

pub(crate) fn on_path(program: &str) -> bool {
    path_of(program).is_some()
}

/// Returns the file of a program in the PATH.
pub(crate) fn path_of(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

fn set(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}
