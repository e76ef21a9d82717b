//! Hot reload of rule files.

use std::fs;
use std::sync::{Arc, Mutex};

use tidegate::{Error, Event, Limiter, Observer};
use tidegate_rules::{Descriptor, Loader, ReloadingRules};

use super::loading::Folder;
use crate::support::fixture::{builder, namespace, soon};

/// Records the observer's notifications.
#[derive(Clone, Default)]
pub(super) struct Reloads(Arc<Mutex<Vec<Result<usize, String>>>>);

impl Observer for Reloads {
    fn on(&self, event: &Event<'_>) {
        if let Event::RulesReloaded(rules) = *event {
            self.0.lock().unwrap().push(rules.map_err(Error::to_string));
        }
    }
}

impl Reloads {
    pub(super) fn recorded(&self) -> Vec<Result<usize, String>> {
        self.0.lock().unwrap().clone()
    }

    /// Waits for this number of notifications. New rules are active before the observer is notified.
    pub(super) async fn wait_for(&self, reloads: usize) {
        soon("the observer is notified of a reload", async || self.recorded().len() == reloads).await;
    }
}

pub(super) fn rules_with_limit(limit: u64) -> String {
    format!(
        "domain: d\ndescriptors: [{{ key: k, rate_limit: {{ unit: day, requests_per_unit: {limit} }} }}]\n"
    )
}

/// Makes one check, and returns the limit and the remaining units.
pub(super) async fn check(watched: &ReloadingRules) -> (u64, u64) {
    let decision = watched.limits().check("d", &[Descriptor::from([("k", "v")])]).await.unwrap();
    let decision = decision.binding().unwrap().decision().unwrap();
    (decision.limit(), decision.remaining())
}

pub(super) async fn wait_for_limit(watched: &ReloadingRules, limit: u64) {
    soon("the new limit is active", async || {
        let rule = watched.limits().rules().iter().next().unwrap().quota().unwrap();
        rule.limit() == limit
    })
    .await;
}

pub(super) fn watch(folder: &Folder) -> (ReloadingRules, Reloads) {
    let reloads = Reloads::default();
    let limiter = Limiter::builder().in_memory().observer(reloads.clone()).build().unwrap();
    (Loader::new().watch(&folder.0, &limiter).unwrap(), reloads)
}

#[tokio::test]
async fn renamed_file_takes_effect_and_keeps_the_counts() {
    let folder = Folder::new("rename");
    folder.write("a.yaml", rules_with_limit(10));
    let (watched, reloads) = watch(&folder);
    assert_eq!(check(&watched).await, (10, 9));
    folder.write("a.yaml", rules_with_limit(20));
    wait_for_limit(&watched, 20).await;
    assert_eq!(check(&watched).await, (20, 18));
    folder.write("a.yaml", rules_with_limit(5));
    wait_for_limit(&watched, 5).await;
    assert_eq!(check(&watched).await, (5, 2));
    reloads.wait_for(2).await;
    assert_eq!(reloads.recorded(), [Ok(1), Ok(1)]);
}

/// The watcher can read the file while it is empty or incomplete, so the number of reloads is not defined.
#[tokio::test]
async fn file_edited_in_place_takes_effect_and_keeps_the_counts() {
    let folder = Folder::new("edit");
    folder.write("a.yaml", rules_with_limit(10));
    let (watched, _) = watch(&folder);
    assert_eq!(check(&watched).await, (10, 9));
    fs::write(folder.0.join("a.yaml"), rules_with_limit(20)).unwrap();
    wait_for_limit(&watched, 20).await;
    assert_eq!(check(&watched).await, (20, 18));
}

#[cfg(unix)]
#[tokio::test]
async fn replaced_link_of_a_kubernetes_config_map_takes_effect() {
    let folder = Folder::new("swap");
    let version = |name: &str, limit| {
        fs::create_dir(folder.0.join(name)).unwrap();
        fs::write(folder.0.join(name).join("a.yaml"), rules_with_limit(limit)).unwrap();
        std::os::unix::fs::symlink(name, folder.0.join("..data_tmp")).unwrap();
        fs::rename(folder.0.join("..data_tmp"), folder.0.join("..data")).unwrap();
    };
    version("..1", 10);
    std::os::unix::fs::symlink("..data/a.yaml", folder.0.join("a.yaml")).unwrap();
    let (watched, _) = watch(&folder);
    assert_eq!(check(&watched).await, (10, 9));
    version("..2", 20);
    fs::remove_dir_all(folder.0.join("..1")).unwrap();
    wait_for_limit(&watched, 20).await;
}

#[tokio::test]
async fn invalid_file_keeps_the_old_rules_and_is_reported_once() {
    let folder = Folder::new("bad");
    folder.write("a.yaml", rules_with_limit(10));
    let (watched, reloads) = watch(&folder);
    assert!(watched.last_reload().is_none());
    folder.write("a.yaml", rules_with_limit(20).replace("day", "dya"));
    reloads.wait_for(1).await;
    let error = reloads.recorded().remove(0).unwrap_err();
    assert!(error.contains("a.yaml:2:45: there is no unit `dya`"), "{error}");
    let reload = watched.last_reload().unwrap();
    assert_eq!(reload.result().unwrap_err().to_string(), error);
    assert_eq!(
        reload.sources().map(|(_, text)| text).collect::<Vec<_>>(),
        [rules_with_limit(20).replace("day", "dya")]
    );
    let limits = watched.limits();
    let active = limits.rules().sources().map(|(_, text)| text.to_owned()).collect::<Vec<_>>();
    assert_eq!(active, [rules_with_limit(10)], "the previous text stays");
    assert_eq!(check(&watched).await, (10, 9));
    folder.write("a.yaml", "");
    reloads.wait_for(2).await;
    fs::remove_file(folder.0.join("a.yaml")).unwrap();
    reloads.wait_for(3).await;
    assert_eq!(check(&watched).await, (10, 8));
    folder.write("a.yaml", rules_with_limit(20));
    wait_for_limit(&watched, 20).await;
    reloads.wait_for(4).await;
    assert_eq!(reloads.recorded()[3], Ok(1));
    assert_eq!(watched.last_reload().unwrap().result().unwrap(), 1);
}

#[tokio::test]
async fn last_reload_has_the_files_and_their_errors_while_the_old_rules_keep_their_own() {
    let folder = Folder::new("last-reload");
    let (old, new) = (rules_with_limit(10), rules_with_limit(20));
    folder.write("a.yaml", old.clone());
    let (watched, reloads) = watch(&folder);
    assert!(watched.last_reload().is_none());

    folder.write("a.yaml", new.replace("day", "dya"));
    folder.write("b.yaml", "root:x:0:0");
    reloads.wait_for(1).await;
    let failed = watched.last_reload().unwrap();
    assert!(failed.result().unwrap_err().to_string().contains("there is no unit `dya`"));
    let lines: Vec<_> =
        failed.errors().map(|error| (error.file().ends_with("a.yaml"), error.line())).collect();
    assert_eq!(lines[0], (true, 2));
    let texts: Vec<_> = failed.sources().map(|(_, text)| text.to_owned()).collect();
    assert_eq!(texts, [new.replace("day", "dya")], "the text of another file is not shown");
    let limits = watched.limits();
    assert_eq!(limits.rules().sources().map(|(_, text)| text).collect::<Vec<_>>(), [&*old]);

    fs::remove_file(folder.0.join("b.yaml")).unwrap();
    folder.write("a.yaml", new.clone());
    wait_for_limit(&watched, 20).await;
    reloads.wait_for(2).await;
    let applied = watched.last_reload().unwrap();
    assert_eq!((applied.result().ok(), applied.errors().count()), (Some(1), 0));
    assert_eq!(watched.limits().rules().sources().map(|(_, text)| text).collect::<Vec<_>>(), [&*new]);
}

#[tokio::test]
async fn invalid_file_at_startup_is_an_error() {
    let folder = Folder::new("start");
    folder.write("a.yaml", "domain: d\ncharge: both\n");
    let error = Loader::new().watch(&folder.0, &Limiter::in_memory()).unwrap_err();
    assert!(error.is_config());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_check_is_decided_by_one_complete_version() {
    let folder = Folder::new("load");
    folder.write("a.yaml", rules_with_limit(1_000_000));
    let (watched, reloads) = watch(&folder);
    let watched = Arc::new(watched);
    let tasks: Vec<_> = (0..4)
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
        folder.write("a.yaml", rules_with_limit(1_000_000 * (1 + round as u64 % 2)));
        reloads.wait_for(round).await;
    }
    tasks.iter().for_each(|task| assert!(!task.is_finished()));
    tasks.iter().for_each(|task| task.abort());
}

/// A rolling deploy: one process has the new file, another still has the old one.
#[tokio::test]
async fn processes_with_different_versions_do_not_flap() {
    let (old, new) = (Folder::new("old"), Folder::new("new"));
    old.write("a.yaml", rules_with_limit(10));
    new.write("a.yaml", rules_with_limit(20));
    let (server, namespace) = (tidegate_testkit::shared(), namespace());
    let watch = |folder: &Folder| {
        let limiter = builder(server.url()).namespace(&namespace).build().unwrap();
        Loader::new().watch(&folder.0, &limiter).unwrap()
    };
    let (old_process, new_process) = (watch(&old), watch(&new));
    // Both processes charge the same count. Each denies by its own limit, and admits nothing after that.
    for used in (2..=10).step_by(2) {
        assert_eq!(check(&old_process).await, (10, 10 - used + 1));
        assert_eq!(check(&new_process).await, (20, 20 - used));
    }
    for used in 11..=20 {
        assert_eq!(check(&old_process).await, (10, 0));
        assert_eq!(check(&new_process).await, (20, 20 - used));
    }
    old.write("a.yaml", rules_with_limit(21));
    wait_for_limit(&old_process, 21).await;
    assert_eq!(check(&old_process).await, (21, 0));
    assert_eq!(check(&new_process).await, (20, 0));
}
