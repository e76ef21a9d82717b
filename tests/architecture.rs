//! Modules import only from their own layer or from lower layers of the diagram in `src/lib.rs`.

mod imports;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the layer of each module in the diagram. The top layer is 0.
fn layers_of_diagram(lib: &str) -> HashMap<String, usize> {
    let diagram = lib.split("```text").nth(1).unwrap().split("```").next().unwrap();
    let rows = diagram.lines().filter_map(|line| line.trim_start_matches("//!").trim().split("  ").next());
    let rows = rows.filter(|row| !row.is_empty() && !row.starts_with('|'));
    rows.enumerate()
        .flat_map(|(depth, row)| {
            // Skips submodules in parentheses, as in `store (redis | memory)`.
            let modules = row.split('(').next().unwrap().split(',');
            modules.map(move |module| (module.trim().to_owned(), depth)).collect::<Vec<_>>()
        })
        .collect()
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

/// Returns the source folders of the core and of the other crates.
fn crates() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let others = fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path().join("src"));
    std::iter::once(root.join("src")).chain(others).collect()
}

/// Returns the modules that a line of code names by a path from the crate root.
fn imports(line: &str) -> impl Iterator<Item = &str> {
    let code = line.split("//").next().unwrap_or_default();
    let names = code.split("crate::").skip(1);
    names.map(|rest| {
        rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next().unwrap_or_default()
    })
}

#[test]
fn no_module_imports_from_a_higher_layer() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let lib = fs::read_to_string(source.join("lib.rs")).unwrap();
    let depth = layers_of_diagram(&lib);
    for module in lib.lines().filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod ")) {
        let module = module.trim_end_matches([';', ' ', '{']);
        assert!(depth.contains_key(module), "{module} is not in the diagram: {depth:?}");
    }
    let mut checked = 0;
    for path in sources(&source) {
        let inside = path.strip_prefix(&source).unwrap().with_extension("");
        let importer = inside.iter().next().unwrap().to_str().unwrap();
        if importer == "lib" {
            continue;
        }
        for line in fs::read_to_string(&path).unwrap().lines() {
            for imported in imports(line) {
                let below = depth.get(imported).unwrap_or_else(|| panic!("{}: {line}", path.display()));
                assert!(*below >= depth[importer], "{importer} imports up: {line}");
                checked += 1;
            }
        }
    }
    assert!(checked > 50, "found only {checked} imports: update how this test parses them");
}

#[test]
fn diagram_and_imports_are_parsed() {
    let depth =
        layers_of_diagram("//! ```text\n//! a, b      words\n//!     |\n//! c (d | e)   words\n//! ```\n");
    assert_eq!(depth, HashMap::from([("a".to_owned(), 0), ("b".to_owned(), 0), ("c".to_owned(), 1)]));
    assert_eq!(imports("use crate::store::{A, B}; // crate::c").collect::<Vec<_>>(), ["store"]);
    assert_eq!(imports("fn f(a: crate::a_b::C, d: crate::D)").collect::<Vec<_>>(), ["a_b", "D"]);
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    for source in crates() {
        let imports = imports::of_crate(&source);
        assert!(imports.len() > 5, "{}: {imports:?}", source.display());
        let cycle = imports::cycle(&imports);
        assert!(
            cycle.is_none(),
            "{}: these files import each other in a circle: {cycle:?}",
            source.display()
        );
    }
}

/// The texts between two marks in a document, such as backticks.
fn between<'t>(text: &'t str, open: &str, close: &str) -> Vec<&'t str> {
    text.split(open).skip(1).filter_map(|rest| Some(rest.split_once(close)?.0)).collect()
}

#[test]
fn architecture_md_links_to_files_and_names_functions_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = String::new();
    for folder in [root, &root.join("crates/tidegate-server")] {
        let page = fs::read_to_string(folder.join("ARCHITECTURE.md")).unwrap();
        for link in between(&page, "](", ")").into_iter().filter(|link| !link.contains("://")) {
            let path = folder.join(link.split('#').next().unwrap());
            assert!(path.exists(), "ARCHITECTURE.md links to {}, which does not exist", path.display());
        }
        assert!(page.lines().count() <= 180, "an ARCHITECTURE.md has more than 180 lines");
        pages += &page;
    }
    let code: String = crates()
        .into_iter()
        .chain([root.join("lua")])
        .flat_map(|folder| sources(&folder))
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    let words: HashSet<&str> =
        code.split(|letter: char| !letter.is_alphanumeric() && letter != '_').collect();
    let steps = pages.lines().filter(|line| line.starts_with(|letter: char| letter.is_ascii_digit()));
    let mut checked = 0;
    for step in steps {
        // Backticks enclose every second part.
        for name in step.split('`').skip(1).step_by(2) {
            let last = name.rsplit("::").next().unwrap().trim_end_matches("()");
            if last.chars().all(|letter| letter.is_alphanumeric() || letter == '_') {
                assert!(words.contains(last), "ARCHITECTURE.md names `{name}`, which the code does not have");
                checked += 1;
            }
        }
    }
    assert!(checked > 40, "only {checked} names found in the numbered lists");
}

/// A source file, with the words in it.
struct Source {
    path: PathBuf,
    words: HashSet<String>,
}

/// Returns all source files of the repository.
fn all_sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = ["src", "lua", "tests", "crates", "models/src"].map(|folder| sources(&root.join(folder)));
    let is_code =
        |path: &PathBuf| path.extension().is_some_and(|extension| extension == "rs" || extension == "lua");
    let read = |path: PathBuf| {
        let code = fs::read_to_string(&path).unwrap();
        let words = code.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        Source { words: words.map(str::to_owned).collect(), path }
    };
    folders.into_iter().flatten().filter(is_code).map(read).collect()
}

/// Returns whether one of these files contains all parts of a name such as `Shard::room`.
fn is_named_in<'s>(name: &str, files: impl IntoIterator<Item = &'s Source>) -> bool {
    files.into_iter().any(|file| name.split("::").all(|part| file.words.contains(part)))
}

/// A name followed by "in" or a parenthesis and a path, or preceded by a path and a colon, must occur in that
/// file; any other name in some file.
#[test]
fn invariants_md_names_files_functions_and_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/reference/invariants.md")).unwrap();
    let all = all_sources();
    let (mut paths, mut names) = (0, 0);
    for cell in page.lines().flat_map(|line| line.split(" | ")) {
        let parts: Vec<&str> = cell.split('`').collect();
        // The names since the last path, and the files that a following list of names belongs to.
        let (mut pending, mut owner): (Vec<&str>, Option<Vec<&Source>>) = (Vec::new(), None);
        // Backticks enclose every second part.
        for pair in parts.chunks_exact(2) {
            let (before, quoted) = (pair[0], pair[1]);
            if quoted.contains("NAME") {
                continue; // Stands for the name of each algorithm.
            }
            if quoted.contains(['/', '.']) {
                let files: Vec<&Source> = all.iter().filter(|file| file.path.ends_with(quoted)).collect();
                let exists = !files.is_empty() || root.join(quoted).exists();
                assert!(exists, "invariants.md names `{quoted}`, which does not exist");
                if before == " (" || before == " in " {
                    for name in &pending {
                        let is_named = is_named_in(name, files.iter().copied());
                        assert!(is_named, "invariants.md names `{name}`, which is not in {quoted}");
                    }
                }
                (pending, owner) = (Vec::new(), Some(files));
                paths += 1;
                continue;
            }
            owner = owner.filter(|_| before == ": " || before == ", ");
            let is_named = match &owner {
                Some(files) => is_named_in(quoted, files.iter().copied()),
                None => is_named_in(quoted, &all),
            };
            assert!(is_named, "invariants.md names `{quoted}`, which the code does not have there");
            pending.push(quoted);
            names += 1;
        }
    }
    assert!(paths > 25 && names > 40, "found only {paths} paths and {names} names");
}

/// A published crate cannot contain files from outside its folder, so it holds copies.
#[test]
fn licenses_and_guide_pages_of_crates_equal_their_originals() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (original, copy) in [
        ("LICENSE-APACHE", "crates/tidegate-cli/LICENSE-APACHE"),
        ("LICENSE-MIT", "crates/tidegate-cli/LICENSE-MIT"),
        ("LICENSE-APACHE", "crates/tidegate-http/LICENSE-APACHE"),
        ("LICENSE-MIT", "crates/tidegate-http/LICENSE-MIT"),
        ("LICENSE-APACHE", "crates/tidegate-rules/LICENSE-APACHE"),
        ("LICENSE-MIT", "crates/tidegate-rules/LICENSE-MIT"),
        ("docs/guide/http.md", "crates/tidegate-http/docs/http.md"),
        ("docs/guide/outgoing.md", "crates/tidegate-http/docs/outgoing.md"),
        ("docs/guide/request-keys.md", "crates/tidegate-http/docs/request-keys.md"),
        ("docs/guide/rules.md", "crates/tidegate-rules/docs/rules.md"),
    ] {
        let is_equal = fs::read(root.join(original)).ok() == fs::read(root.join(copy)).ok();
        assert!(is_equal && root.join(copy).exists(), "run: cp {original} {copy}");
    }
}

#[test]
fn each_warning_code_has_one_entry_in_troubleshooting_md() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let codes_in = |folders: &[PathBuf]| {
        let files = folders.iter().flat_map(|folder| sources(folder));
        let texts: Vec<String> = files.map(|path| fs::read_to_string(path).unwrap()).collect();
        let production = texts.iter().map(|text| text.split("#[cfg(test)]").next().unwrap());
        let codes = production.flat_map(|text| between(text, "RepeatedWarning::new(\"", "\")"));
        codes.map(str::to_owned).collect::<std::collections::BTreeSet<_>>()
    };
    let page = fs::read_to_string(root.join("docs/operate/troubleshooting.md")).unwrap();
    let entries = between(&page, "\n## `", "`\n").into_iter().map(str::to_owned).collect();
    assert_eq!(codes_in(&crates()), entries);
    // The series of the core's codes exist from the start: Prometheus does not count a new one as an increase.
    let list = fs::read_to_string(root.join("src/warning.rs")).unwrap();
    let listed = between(&list, "const CODES: ", "];")[0].split('"').skip(1).step_by(2).map(str::to_owned);
    assert_eq!(codes_in(&[root.join("src")]), listed.collect());
}

#[test]
fn default_build_has_the_number_of_crates_that_dependencies_md_states() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tree = std::process::Command::new(env!("CARGO"))
        .args([
            "tree",
            "-e",
            "normal",
            "--prefix",
            "none",
            "--no-dedupe",
            "--locked",
            "--offline",
            "-p",
            "tidegate",
        ])
        .args(["--target", "x86_64-unknown-linux-gnu", "--format", "{p}"])
        .current_dir(root)
        .output()
        .unwrap();
    let tree = String::from_utf8(tree.stdout).unwrap();
    let crates: HashSet<&str> = tree.lines().map(|line| line.split(" (").next().unwrap()).collect();
    for page in ["docs/reference/dependencies.md", "SECURITY.md"] {
        let text = fs::read_to_string(root.join(page)).unwrap();
        let stated = between(&text, "A default build", "crates")[0];
        assert_eq!(stated.split_whitespace().last().unwrap(), crates.len().to_string(), "{page}");
    }
}
