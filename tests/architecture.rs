//! Imports go down only, as the drawing in `src/lib.rs` says.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Each module and how far down it is drawn.
fn drawn_layers(lib: &str) -> HashMap<String, usize> {
    let drawing = lib.split("```text").nth(1).unwrap().split("```").next().unwrap();
    let rows = drawing.lines().filter_map(|line| line.trim_start_matches("//!").trim().split("  ").next());
    let rows = rows.filter(|row| !row.is_empty() && !row.starts_with('|'));
    rows.enumerate()
        .flat_map(|(depth, row)| {
            // `store (redis | memory)`: what a module holds is its own affair.
            let modules = row.split('(').next().unwrap().split(',');
            modules.map(move |module| (module.trim().to_owned(), depth)).collect::<Vec<_>>()
        })
        .collect()
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

/// The modules that a line of code names from the crate's root.
fn imports(line: &str) -> impl Iterator<Item = &str> {
    let code = line.split("//").next().unwrap_or_default();
    let names = code.split("crate::").skip(1);
    names.map(|rest| {
        rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next().unwrap_or_default()
    })
}

#[test]
fn no_import_goes_up() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let lib = fs::read_to_string(source.join("lib.rs")).unwrap();
    let depth = drawn_layers(&lib);
    for module in lib.lines().filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod ")) {
        let module = module.trim_end_matches([';', ' ', '{']);
        assert!(
            depth.contains_key(module) || module == "internals",
            "{module} is not in the drawing: {depth:?}"
        );
    }
    let mut checked = 0;
    for path in sources(&source) {
        let inside = path.strip_prefix(&source).unwrap().with_extension("");
        let importer = inside.iter().next().unwrap().to_str().unwrap();
        // What a program's `crate` is, is not the library.
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
    assert!(checked > 50, "only {checked} imports found: is this still how they are written?");
}

#[test]
fn the_drawing_is_read_as_it_is_meant() {
    let depth = drawn_layers("//! ```text\n//! a, b      words\n//!     |\n//! c (d | e)   words\n//! ```\n");
    assert_eq!(depth, HashMap::from([("a".to_owned(), 0), ("b".to_owned(), 0), ("c".to_owned(), 1)]));
    assert_eq!(imports("use crate::store::{A, B}; // crate::c").collect::<Vec<_>>(), ["store"]);
    assert_eq!(imports("fn f(a: crate::a_b::C, d: crate::D)").collect::<Vec<_>>(), ["a_b", "D"]);
}
