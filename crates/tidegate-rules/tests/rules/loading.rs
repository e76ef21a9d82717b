//! Loading rules from files and folders.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tidegate_rules::{Descriptor, Limit, Rules, schema};

/// A temporary folder, removed on drop.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tidegate-rules-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Replaces a file in one step, so that a watcher never reads a part of it.
    pub(super) fn write(&self, file: &str, text: impl AsRef<[u8]>) {
        let new = self.0.join(format!("{file}.new"));
        fs::write(&new, text).unwrap();
        fs::rename(new, self.0.join(file)).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn domain(name: &str) -> String {
    format!(
        "domain: {name}\ndescriptors: [{{ key: k, rate_limit: {{ unit: day, requests_per_unit: 1 }} }}]\n"
    )
}

fn only_error(path: &Path) -> (usize, String) {
    let errors = Rules::load(path).unwrap_err();
    let found: Vec<_> = errors.iter().map(|error| (error.line(), error.message().to_owned())).collect();
    assert_eq!(found.len(), 1, "{errors}");
    found.into_iter().next().unwrap()
}

#[test]
fn all_documents_of_all_yaml_files_in_a_folder_are_loaded() {
    let folder = Folder::new("all");
    folder.write("a.yaml", domain("a") + "---\n" + &domain("b") + "---\n# nothing\n");
    folder.write("c.yml", domain("c"));
    folder.write(".d.yaml", "not: rules");
    folder.write("e.txt", "not: rules");
    fs::create_dir(folder.0.join("f.yaml")).unwrap();
    let rules = Rules::load(&folder.0).unwrap();
    for name in ["a", "b", "c"] {
        assert!(rules.find(name, &Descriptor::from([("k", "v")])).is_some(), "{name}");
    }
    let (file, line) = rules.iter().nth(1).unwrap().origin();
    assert!(file.ends_with("/a.yaml"));
    assert_eq!(line, 5);
}

#[cfg(unix)]
#[test]
fn links_of_a_kubernetes_config_map_are_followed() {
    let folder = Folder::new("links");
    let version = folder.0.join("..2026_01_01");
    fs::create_dir(&version).unwrap();
    fs::write(version.join("a.yaml"), domain("a")).unwrap();
    std::os::unix::fs::symlink("..2026_01_01", folder.0.join("..data")).unwrap();
    std::os::unix::fs::symlink("..data/a.yaml", folder.0.join("a.yaml")).unwrap();
    assert_eq!(Rules::load(&folder.0).unwrap().iter().count(), 1);
}

#[test]
fn unreadable_file_is_an_error() {
    let folder = Folder::new("unreadable");
    assert_eq!(only_error(&folder.0).1, "no file in this folder ends in .yaml or .yml");
    folder.write("a.yaml", [0xff, 0xfe]);
    assert_eq!(only_error(&folder.0), (0, "this file is not UTF-8".to_owned()));
    let (line, message) = only_error(&folder.0.join("absent.yaml"));
    assert_eq!(line, 0);
    assert!(message.starts_with("cannot be read: "), "{message}");
}

#[test]
fn schema_describes_every_field_of_the_example_fixtures() {
    let schema: Value = serde_json::from_str(&schema()).unwrap();
    let names = |table: &Value| table["properties"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let mut known = names(&schema);
    schema["$defs"].as_object().unwrap().values().for_each(|table| known.extend(names(table)));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rules/fixtures/examples");
    for file in fs::read_dir(folder).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
        for part in lines.flat_map(|line| line.split([' ', '-', '{', ',']).collect::<Vec<_>>()) {
            if let Some(field) = part.strip_suffix(':') {
                assert!(known.iter().any(|name| name == field), "{field}");
            }
        }
    }
    assert_eq!(schema["$defs"]["rate_limit"]["properties"]["unit"]["enum"][1], "minute");
    assert_eq!(
        schema["$defs"]["descriptor"]["properties"]["descriptors"]["items"]["$ref"],
        "#/$defs/descriptor"
    );
    let actions = &schema["properties"]["rate_limits"]["items"]["$ref"];
    assert_eq!(actions, "#/$defs/entry_of_rate_limits");
    assert_eq!(
        schema["$defs"]["request_headers"]["required"],
        serde_json::json!(["header_name", "descriptor_key"])
    );
    let text = schema.to_string();
    let names = text.split("#/$defs/").skip(1).map(|rest| rest.split('"').next().unwrap());
    for name in names {
        assert!(schema["$defs"][name].is_object(), "{name}");
    }
}

#[test]
fn each_file_of_the_guide_is_read_without_a_warning_and_one_has_tiers_a_ban_and_a_candidate() {
    let page = include_str!("../../docs/rules.md");
    let files = page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let files: Vec<Rules> = files.map(|text| Rules::parse("guide.yaml", text).unwrap()).collect();
    assert!(files.iter().all(|rules| rules.warnings().is_empty()), "{files:?}");
    let whole = files.last().unwrap();
    let find = |entries: &[(&'static str, &'static str)]| {
        let descriptor = entries.iter().fold(Descriptor::new(), |all, (key, value)| all.entry(key, *value));
        whole.find("api", &descriptor).unwrap()
    };
    let user = find(&[("user", "ada")]);
    assert_eq!(user.candidate().unwrap().limit(), 60);
    let Limit::Quota(pro) = user.limit(Some("pro")) else { panic!("{user:?}") };
    assert_eq!(pro.limit(), 1_000);
    assert!(matches!(user.limit(Some("internal")), Limit::Unlimited));
    assert!(find(&[("path", "/login"), ("remote_address", "192.0.2.7")]).ban().is_some());
    assert_eq!(find(&[("path", "/reports/7")]).quota().unwrap().to_string(), "10/min burst 2");
}
