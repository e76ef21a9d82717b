//! Files in a watched folder that block, never end or are huge.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use tidegate_rules::{Loader, Rules};

use super::loading::Folder;
use super::reloading::{check, rules_with_limit, wait_for_limit, watch};

/// Puts a file into a watched folder. Asserts that it is reported once with this message, that the rules stay, and
/// that the folder is still watched.
async fn assert_reported(name: &str, make: impl FnOnce(&Path), message: &str) {
    let folder = Folder::new(name);
    folder.write("a.yaml", rules_with_limit(10));
    let (watched, reloads) = watch(&folder);
    let (new, file) = (folder.0.join("new"), folder.0.join("b.yaml"));
    make(&new);
    fs::rename(new, &file).unwrap();
    reloads.wait_for(1).await;
    let error = reloads.recorded().remove(0).unwrap_err();
    assert!(error.contains(&format!("b.yaml: {message}")), "{error}");
    assert!(error.len() < 500, "{error}");
    assert_eq!(check(&watched).await, (10, 9));
    // Another file changes meanwhile: the error is still the only result.
    folder.write("a.yaml", rules_with_limit(20));
    reloads.wait_for(2).await;
    assert!(reloads.recorded().remove(1).unwrap_err().contains(message));
    fs::remove_file(file).unwrap();
    wait_for_limit(&watched, 20).await;
    reloads.wait_for(3).await;
    assert_eq!(reloads.recorded()[2], Ok(1));
}

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[tokio::test]
async fn fifo_is_reported_and_does_not_block_reloading() {
    assert_reported("fifo", fifo, "a rule file must be a regular file, not a FIFO").await;
}

#[tokio::test]
async fn link_to_a_fifo_is_reported_and_does_not_block_reloading() {
    let target = Folder::new("fifo-target");
    fifo(&target.0.join("fifo"));
    let link = |path: &Path| symlink(target.0.join("fifo"), path).unwrap();
    assert_reported("fifo-link", link, "a rule file must be a regular file, not a FIFO").await;
}

#[tokio::test]
async fn link_to_an_endless_device_is_reported_and_does_not_block_reloading() {
    let link = |path: &Path| symlink("/dev/zero", path).unwrap();
    assert_reported("zero", link, "a rule file must be a regular file, not a device").await;
}

#[tokio::test]
async fn socket_is_reported_and_does_not_block_reloading() {
    let socket = |path: &Path| drop(UnixListener::bind(path).unwrap());
    assert_reported("socket", socket, "a rule file must be a regular file, not a socket").await;
}

#[tokio::test]
async fn sparse_file_of_1_gb_is_reported_and_not_read() {
    let sparse = |path: &Path| File::create(path).unwrap().set_len(1 << 30).unwrap();
    assert_reported("sparse", sparse, "too large: all rule files together hold at most 16 MiB").await;
}

#[tokio::test]
async fn link_to_nothing_and_link_to_itself_are_reported() {
    assert_reported("nothing", |path| symlink("nothing", path).unwrap(), "cannot be read: No such file")
        .await;
    assert_reported("itself", |path| symlink("b.yaml", path).unwrap(), "cannot be read: ").await;
}

/// A file of /proc is regular, but has no size, and may have no end.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn file_without_a_size_is_reported_and_does_not_stop_reloading() {
    let link = |path: &Path| symlink("/proc/self/cmdline", path).unwrap();
    assert_reported("proc", link, "not a rule file").await;
}

/// The file of /proc reports 0 bytes, so that only reading it shows that it exceeds the limit.
#[cfg(target_os = "linux")]
#[test]
fn file_without_a_size_is_read_up_to_the_limit() {
    let folder = Folder::new("proc-limit");
    let text = rules_with_limit(1) + "#";
    symlink("/proc/self/cmdline", folder.0.join("b.yaml")).unwrap();
    for (bytes_left, message) in [(1, "too large: "), (1 << 20, "not a rule file")] {
        let filler = "x".repeat((16 << 20) - text.len() - bytes_left);
        folder.write("a.yaml", text.clone() + &filler);
        let errors = Rules::load(&folder.0).unwrap_err();
        let errors: Vec<_> = errors.iter().map(|error| (error.file(), error.message())).collect();
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].0.ends_with("b.yaml") && errors[0].1.starts_with(message), "{errors:?}");
    }
}

#[tokio::test]
async fn folder_with_the_name_of_a_rule_file_is_ignored() {
    let folder = Folder::new("folder");
    folder.write("a.yaml", rules_with_limit(10));
    fs::create_dir(folder.0.join("b.yaml")).unwrap();
    symlink(&folder.0, folder.0.join("c.yaml")).unwrap();
    let (watched, reloads) = watch(&folder);
    folder.write("a.yaml", rules_with_limit(20));
    wait_for_limit(&watched, 20).await;
    reloads.wait_for(1).await;
    assert_eq!(reloads.recorded(), [Ok(1)]);
}

#[test]
fn hostile_file_is_an_error_when_it_is_loaded_by_its_own_path() {
    let folder = Folder::new("path");
    let path = folder.0.join("a.yaml");
    fifo(&path);
    for (path, kind) in [(&*path, "a FIFO"), (Path::new("/dev/zero"), "a device")] {
        let error = Rules::load(path).unwrap_err().to_string();
        assert!(error.ends_with(&format!("a rule file must be a regular file, not {kind}")), "{error}");
    }
}

#[test]
fn files_of_a_folder_are_limited_together() {
    let folder = Folder::new("together");
    let filler = format!("{}\n# {}", rules_with_limit(1), "x".repeat(9 << 20));
    folder.write("a.yaml", &filler);
    folder.write("b.yaml", filler.replace("domain: d", "domain: e"));
    folder.write("c.yaml", rules_with_limit(1).replace("domain: d", "domain: f"));
    let errors = Rules::load(&folder.0).unwrap_err();
    let errors: Vec<_> = errors.iter().map(|error| (error.file(), error.message())).collect();
    assert_eq!(errors.len(), 1);
    assert!(errors[0].0.ends_with("b.yaml") && errors[0].1.starts_with("too large: "), "{errors:?}");
}

#[test]
fn folder_of_more_than_1000_files_is_an_error() {
    let folder = Folder::new("thousand");
    for file in 0..1_001 {
        folder.write(&format!("{file}.yaml"), format!("domain: d{file}\n"));
        if file == 999 {
            assert_eq!(Rules::load(&folder.0).unwrap().iter().count(), 0);
        }
    }
    let error = Loader::new().load(&folder.0).unwrap_err().to_string();
    assert!(error.ends_with(": more than 1000 files in this folder end in .yaml or .yml"), "{error}");
}
