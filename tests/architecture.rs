//! Modules import only from their own layer or from lower layers of the diagram in `src/lib.rs`.

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
        assert!(
            depth.contains_key(module) || module == "internals",
            "{module} is not in the diagram: {depth:?}"
        );
    }
    let mut checked = 0;
    for path in sources(&source) {
        let inside = path.strip_prefix(&source).unwrap().with_extension("");
        let importer = inside.iter().next().unwrap().to_str().unwrap();
        // In a binary, `crate` is the binary, not the library.
        if ["lib", "bin"].contains(&importer) {
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

/// The texts between two marks in a document, such as backticks.
fn between<'t>(text: &'t str, open: &str, close: &str) -> Vec<&'t str> {
    text.split(open).skip(1).filter_map(|rest| Some(rest.split_once(close)?.0)).collect()
}

#[test]
fn architecture_md_links_to_files_and_names_functions_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    for link in between(&page, "](", ")").into_iter().filter(|link| !link.contains("://")) {
        let path = link.split('#').next().unwrap();
        assert!(root.join(path).exists(), "ARCHITECTURE.md links to {path}, which does not exist");
    }
    let code: String = ["src", "lua"]
        .into_iter()
        .flat_map(|folder| sources(&root.join(folder)))
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    let words: HashSet<&str> =
        code.split(|letter: char| !letter.is_alphanumeric() && letter != '_').collect();
    let steps = page.lines().filter(|line| line.starts_with(|letter: char| letter.is_ascii_digit()));
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
    assert!(page.lines().count() <= 150, "ARCHITECTURE.md has more than 150 lines");
}
