//! Rules follow their files.

use std::fs;
use std::sync::{Arc, Mutex};

use tidegate::rules::{Descriptor, Loader, Watched};
use tidegate::{Error, Limiter, Observer};

use super::loading::Folder;
use crate::support::fixture::{builder, namespace, soon};

/// What the observer was told.
#[derive(Clone, Default)]
struct Reloads(Arc<Mutex<Vec<Result<usize, String>>>>);

impl Observer for Reloads {
    fn reloaded(&self, rules: Result<usize, &Error>) {
        self.0.lock().unwrap().push(rules.map_err(Error::to_string));
    }
}

impl Reloads {
    fn told(&self) -> Vec<Result<usize, String>> {
        self.0.lock().unwrap().clone()
    }

    /// Rules are in force before their observer is told.
    async fn are_soon(&self, reloads: usize) {
        soon("a reload is told", async || self.told().len() == reloads).await;
    }
}

fn limit_of(limit: u64) -> String {
    format!(
        "domain: d\ndescriptors: [{{ key: k, rate_limit: {{ unit: day, requests_per_unit: {limit} }} }}]\n"
    )
}

/// The limit in force, and what is left of it.
async fn check(watched: &Watched) -> (u64, u64) {
    let ruling = watched.limits().check("d", &[Descriptor::from([("k", "v")])]).await.unwrap();
    let decision = ruling.binding().unwrap().decision().unwrap();
    (decision.limit(), decision.remaining())
}

async fn is_soon(watched: &Watched, limit: u64) {
    soon("the new limit is live", async || {
        let rule = watched.limits().rules().iter().next().unwrap().quota().unwrap();
        rule.limit() == limit
    })
    .await;
}

fn watch(folder: &Folder) -> (Watched, Reloads) {
    let reloads = Reloads::default();
    let limiter = Limiter::builder().in_memory().observer(reloads.clone()).build().unwrap();
    (Loader::new().watch(&folder.0, &limiter).unwrap(), reloads)
}

#[tokio::test]
async fn an_edit_and_a_rename_are_live_soon_and_keep_the_counts() {
    let folder = Folder::new("edit");
    folder.write("a.yaml", limit_of(10));
    let (watched, reloads) = watch(&folder);
    assert_eq!(check(&watched).await, (10, 9));
    folder.write("a.yaml", limit_of(20));
    is_soon(&watched, 20).await;
    assert_eq!(check(&watched).await, (20, 18));
    folder.write("a.new", limit_of(5));
    fs::rename(folder.0.join("a.new"), folder.0.join("a.yaml")).unwrap();
    is_soon(&watched, 5).await;
    assert_eq!(check(&watched).await, (5, 2));
    reloads.are_soon(2).await;
    assert_eq!(reloads.told(), [Ok(1), Ok(1)]);
}

#[cfg(unix)]
#[tokio::test]
async fn a_link_that_leads_elsewhere_is_followed_as_kubernetes_swaps_them() {
    let folder = Folder::new("swap");
    let version = |name: &str, limit| {
        fs::create_dir(folder.0.join(name)).unwrap();
        fs::write(folder.0.join(name).join("a.yaml"), limit_of(limit)).unwrap();
        std::os::unix::fs::symlink(name, folder.0.join("..data_tmp")).unwrap();
        fs::rename(folder.0.join("..data_tmp"), folder.0.join("..data")).unwrap();
    };
    version("..1", 10);
    std::os::unix::fs::symlink("..data/a.yaml", folder.0.join("a.yaml")).unwrap();
    let (watched, _) = watch(&folder);
    assert_eq!(check(&watched).await, (10, 9));
    version("..2", 20);
    fs::remove_dir_all(folder.0.join("..1")).unwrap();
    is_soon(&watched, 20).await;
}

#[tokio::test]
async fn a_bad_file_keeps_the_old_rules_and_is_told_once() {
    let folder = Folder::new("bad");
    folder.write("a.yaml", limit_of(10));
    let (watched, reloads) = watch(&folder);
    folder.write("a.yaml", limit_of(20).replace("day", "dya"));
    reloads.are_soon(1).await;
    let told = reloads.told().remove(0).unwrap_err();
    assert!(told.contains("a.yaml:2:45: there is no unit `dya`"), "{told}");
    assert_eq!(check(&watched).await, (10, 9));
    folder.write("a.yaml", "");
    reloads.are_soon(2).await;
    fs::remove_file(folder.0.join("a.yaml")).unwrap();
    reloads.are_soon(3).await;
    assert_eq!(check(&watched).await, (10, 8));
    folder.write("a.yaml", limit_of(20));
    is_soon(&watched, 20).await;
    reloads.are_soon(4).await;
    assert_eq!(reloads.told()[3], Ok(1));
}

#[tokio::test]
async fn what_is_wrong_at_the_start_is_an_error() {
    let folder = Folder::new("start");
    folder.write("a.yaml", "domain: d\ncharge: both\n");
    let error = Loader::new().watch(&folder.0, &Limiter::in_memory()).unwrap_err();
    assert!(error.is_config());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_check_is_decided_under_one_of_the_versions() {
    let folder = Folder::new("load");
    folder.write("a.yaml", limit_of(1_000_000));
    let (watched, reloads) = watch(&folder);
    let watched = Arc::new(watched);
    let checking: Vec<_> = (0..4)
        .map(|_| {
            let watched = watched.clone();
            tokio::spawn(async move {
                loop {
                    let (limit, _) = check(&watched).await;
                    assert!([1_000_000, 2_000_000].contains(&limit), "{limit}");
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for round in 1..=4 {
        folder.write("a.yaml", limit_of(1_000_000 * (1 + round as u64 % 2)));
        reloads.are_soon(round).await;
    }
    checking.iter().for_each(|task| assert!(!task.is_finished()));
    checking.iter().for_each(|task| task.abort());
}

/// A rolling deploy: one process has the new file already, another does not.
#[tokio::test]
async fn two_versions_side_by_side_do_not_flap() {
    let (old, new) = (Folder::new("old"), Folder::new("new"));
    old.write("a.yaml", limit_of(10));
    new.write("a.yaml", limit_of(20));
    let (server, namespace) = (harness::shared(), namespace());
    let watch = |folder: &Folder| {
        let limiter = builder(server.url()).namespace(&namespace).build().unwrap();
        Loader::new().watch(&folder.0, &limiter).unwrap()
    };
    let (old_process, new_process) = (watch(&old), watch(&new));
    // What one admits counts for the other; each denies by its own limit, and admits nothing after that.
    for used in (2..=10).step_by(2) {
        assert_eq!(check(&old_process).await, (10, 10 - used + 1));
        assert_eq!(check(&new_process).await, (20, 20 - used));
    }
    for used in 11..=20 {
        assert_eq!(check(&old_process).await, (10, 0));
        assert_eq!(check(&new_process).await, (20, 20 - used));
    }
    old.write("a.yaml", limit_of(21));
    is_soon(&old_process, 21).await;
    assert_eq!(check(&old_process).await, (21, 0));
    assert_eq!(check(&new_process).await, (20, 0));
}
