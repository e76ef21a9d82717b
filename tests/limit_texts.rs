//! Limits as text, as the documentation writes them.

use std::fs;
use std::path::{Path, PathBuf};

use tidegate::{Quota, Rate};

fn pages(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { pages(&path) } else { vec![path] }).collect()
}

/// Returns whether a quoted text is meant as a limit or a rate. A state in Redis has its time behind `at`.
fn is_limit(text: &str) -> bool {
    text.starts_with(|letter: char| letter.is_ascii_digit())
        && ["/", " per ", " in flight"].iter().any(|part| text.contains(part))
        && text.len() < 60
        && !text.contains(" at ")
        && !text.contains(['.', ':', '\n'])
}

#[test]
fn each_limit_in_the_documentation_is_read() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = 0;
    let folders =
        ["docs/guide", "docs/operate", "docs/reference"].iter().flat_map(|it| pages(&root.join(it)));
    let files = ["README.md", "crates/tidegate-rules/src/format.md", "crates/tidegate-rules/README.md"];
    let files = folders.chain(files.map(|file| root.join(file)));
    for file in files.filter(|file| file.extension().is_some_and(|it| it == "md")) {
        let page = fs::read_to_string(&file).unwrap();
        for text in page.split(['`', '"']).filter(|text| is_limit(text)) {
            let read = text.parse::<Quota>().map(drop).or_else(|_| text.parse::<Rate>().map(drop));
            read.unwrap_or_else(|error| panic!("{}: `{text}`: {error}", file.display()));
            found += 1;
        }
    }
    assert!(found >= 25, "found only {found} limits: update how this test finds them");
}
