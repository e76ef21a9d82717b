//! Rooms import only from their own floor or from lower floors of the diagram in `src/lib.rs`. A room is a file or
//! folder directly below a source folder.

mod imports;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the rows of the diagram: rooms, and what they are for.
fn rows_of_diagram(page: &str) -> Vec<&str> {
    let diagram = page.split("```text").nth(1).unwrap().split("```").next().unwrap();
    let rows = diagram.lines().map(|line| line.trim_start_matches("//!").trim());
    rows.filter(|row| !row.is_empty() && !row.starts_with('|')).collect()
}

/// Returns the floor of each room in the diagram. The top floor is 0.
fn floors_of_diagram(page: &str) -> HashMap<String, usize> {
    let rows = rows_of_diagram(page).into_iter().enumerate();
    rows.flat_map(|(depth, row)| {
        // Skips submodules in parentheses, as in `store (redis | memory)`.
        let modules = row.split("  ").next().unwrap().split('(').next().unwrap().split(',');
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

/// Returns the rooms of a crate: the modules whose files and folders lie directly below its source folder.
fn rooms_of(source: &Path) -> BTreeSet<String> {
    let inside =
        sources(source).into_iter().map(|path| path.strip_prefix(source).unwrap().with_extension(""));
    inside.map(|path| path.iter().next().unwrap().to_str().unwrap().to_owned()).collect()
}

#[test]
fn no_room_imports_from_a_higher_floor() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let lib = fs::read_to_string(source.join("lib.rs")).unwrap();
    let depth = floors_of_diagram(&lib);
    for room in rooms_of(&source).iter().filter(|room| *room != "lib") {
        assert!(depth.contains_key(room), "{room} is not in the diagram: {depth:?}");
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
        floors_of_diagram("//! ```text\n//! a, b      words\n//!     |\n//! c (d | e)   words\n//! ```\n");
    assert_eq!(depth, HashMap::from([("a".to_owned(), 0), ("b".to_owned(), 0), ("c".to_owned(), 1)]));
    assert_eq!(imports("use crate::store::{A, B}; // crate::c").collect::<Vec<_>>(), ["store"]);
    assert_eq!(imports("fn f(a: crate::a_b::C, d: crate::D)").collect::<Vec<_>>(), ["a_b", "D"]);
}

#[test]
fn no_rooms_import_each_other_in_a_circle() {
    for source in crates() {
        let imports = imports::of_rooms(&source);
        assert!(imports.len() > 3, "{}: {imports:?}", source.display());
        let cycle = imports::cycle(&imports);
        assert!(
            cycle.is_none(),
            "{}: these rooms import each other in a circle: {cycle:?}",
            source.display()
        );
    }
}

/// Whoever raises one of these numbers says why in the commit. Rooms and floors include `lib`, but not `guide`,
/// which is documentation. Lines of code have no comments, blanks and unit tests.
#[test]
fn house_is_within_its_budgets() {
    const ROOMS: usize = 18;
    const FLOORS: usize = 12;
    const PUBLIC_FUNCTIONS: usize = 466;
    const LINES: [(&str, usize); 7] = [
        ("src", 28_255),
        ("crates/tidegate-cli/src", 5_620),
        ("crates/tidegate-console/src", 3_905),
        ("crates/tidegate-http/src", 5_721),
        ("crates/tidegate-rules/src", 5_880),
        ("crates/tidegate-server/src", 5_800),
        ("lua", 2_945),
    ];
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut over = Vec::new();
    let mut hold = |what: &str, count: usize, budget: usize| {
        if count > budget {
            over.push(format!("{what}: {count} instead of at most {budget}"));
        }
    };
    let source = root.join("src");
    let floors = floors_of_diagram(&fs::read_to_string(source.join("lib.rs")).unwrap());
    // `lib` takes the place of `guide`, both as a room and as a floor.
    hold("rooms", rooms_of(&source).len() - 1, ROOMS);
    hold("floors", floors.into_values().collect::<BTreeSet<_>>().len(), FLOORS);
    hold("public functions of the core", public_functions(&source), PUBLIC_FUNCTIONS);
    for (folder, budget) in LINES {
        hold(&format!("lines of code in {folder}"), lines_of_code(&root.join(folder)), budget);
    }
    assert!(over.is_empty(), "over budget: {over:#?}");
}

fn public_functions(source: &Path) -> usize {
    let texts = production(source);
    let is_public = |line: &&str| {
        let line = line.trim_start().strip_prefix("pub ").unwrap_or_default();
        line.trim_start_matches("const ").trim_start_matches("async ").starts_with("fn ")
    };
    texts.iter().map(|text| text.lines().filter(is_public).count()).sum()
}

fn lines_of_code(folder: &Path) -> usize {
    let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("--");
    production(folder).iter().map(|text| text.lines().filter(is_code).count()).sum()
}

/// The texts of the production files in a folder, without comments of Rust and unit tests.
fn production(folder: &Path) -> Vec<String> {
    let is_test = |path: &PathBuf| path.iter().any(|part| part == "tests" || part == "tests.rs");
    let is_code =
        |path: &PathBuf| path.extension().is_some_and(|extension| extension == "rs" || extension == "lua");
    let inside = |path: &PathBuf| path.strip_prefix(folder).unwrap().to_path_buf();
    let files = sources(folder).into_iter().filter(|path| is_code(path) && !is_test(&inside(path)));
    files.map(|path| imports::code(&fs::read_to_string(path).unwrap())).collect()
}

/// The texts between two marks in a document, such as backticks.
fn between<'t>(text: &'t str, open: &str, close: &str) -> Vec<&'t str> {
    text.split(open).skip(1).filter_map(|rest| Some(rest.split_once(close)?.0)).collect()
}

#[test]
fn architecture_md_draws_the_rooms_as_lib_rs_does() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let [map, lib] =
        ["ARCHITECTURE.md", "src/lib.rs"].map(|file| fs::read_to_string(root.join(file)).unwrap());
    assert_eq!(rows_of_diagram(&map), rows_of_diagram(&lib));
}

#[test]
fn architecture_md_links_to_files_and_names_functions_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = String::new();
    for folder in [root, &root.join("crates/tidegate-console"), &root.join("crates/tidegate-server")] {
        let page = fs::read_to_string(folder.join("ARCHITECTURE.md")).unwrap();
        for link in between(&page, "](", ")").into_iter().filter(|link| !link.contains("://")) {
            let path = folder.join(link.split('#').next().unwrap());
            assert!(path.exists(), "ARCHITECTURE.md links to {}, which does not exist", path.display());
        }
        assert!(page.lines().count() <= 120, "an ARCHITECTURE.md has more than 120 lines");
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
    let steps = pages
        .lines()
        .filter(|line| line.starts_with(|letter: char| letter.is_ascii_digit() || letter == '|'));
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
    assert!(checked > 80, "only {checked} names found in the lists and tables");
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
        ("LICENSE-APACHE", "crates/tidegate-console/LICENSE-APACHE"),
        ("LICENSE-MIT", "crates/tidegate-console/LICENSE-MIT"),
        ("LICENSE-APACHE", "crates/tidegate-http/LICENSE-APACHE"),
        ("LICENSE-MIT", "crates/tidegate-http/LICENSE-MIT"),
        ("LICENSE-APACHE", "crates/tidegate-rules/LICENSE-APACHE"),
        ("LICENSE-MIT", "crates/tidegate-rules/LICENSE-MIT"),
        ("docs/guide/http.md", "crates/tidegate-http/docs/http.md"),
        ("docs/guide/by-country.md", "crates/tidegate-http/docs/by-country.md"),
        ("docs/guide/llm.md", "crates/tidegate-http/docs/llm.md"),
        ("docs/guide/outgoing.md", "crates/tidegate-http/docs/outgoing.md"),
        ("docs/guide/request-keys.md", "crates/tidegate-http/docs/request-keys.md"),
        ("docs/guide/rules.md", "crates/tidegate-rules/docs/rules.md"),
    ] {
        let is_equal = fs::read(root.join(original)).ok() == fs::read(root.join(copy)).ok();
        assert!(is_equal && root.join(copy).exists(), "run: cp {original} {copy}");
    }
}

#[test]
fn each_warning_code_has_one_entry_in_the_runbook() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let codes_in = |folders: &[PathBuf]| {
        let files = folders.iter().flat_map(|folder| sources(folder));
        let texts: Vec<String> = files.map(|path| fs::read_to_string(path).unwrap()).collect();
        let production = texts.iter().map(|text| text.split("#[cfg(test)]").next().unwrap());
        let codes = production.flat_map(|text| between(text, "RepeatedWarning::new(\"", "\")"));
        codes.map(str::to_owned).collect::<std::collections::BTreeSet<_>>()
    };
    let page = fs::read_to_string(root.join("docs/operate/runbook.md")).unwrap();
    let entries = between(&page, "\n### `", "`\n").into_iter().map(str::to_owned).collect();
    assert_eq!(codes_in(&crates()), entries);
    // The series of the core's codes exist from the start: Prometheus does not count a new one as an increase.
    let list = fs::read_to_string(root.join("src/observe/warning.rs")).unwrap();
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
