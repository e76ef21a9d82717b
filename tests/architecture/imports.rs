//! The imports between the files and rooms of a crate.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A module's path from the crate root, such as `["store", "redis"]`. Each has a file of its own.
type Module = Vec<String>;

/// For each module the modules whose items it imports. An import of a re-exported item counts as an import of
/// the module that defines the item.
pub type Imports = BTreeMap<Module, BTreeSet<Module>>;

/// Reads the imports of the crate whose root module is in this folder.
fn of_crate(source: &Path) -> Imports {
    let texts: BTreeMap<Module, String> = super::sources(source)
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| {
            let inside = path.strip_prefix(source).unwrap().with_extension("");
            let names = inside.iter().map(|name| name.to_str().unwrap().to_owned());
            let module = names.filter(|name| name != "lib" && name != "main").collect();
            (module, code(&fs::read_to_string(&path).unwrap()))
        })
        .collect();
    let is_module = |module: &Module| texts.contains_key(module);
    let reexports: BTreeMap<&Module, BTreeMap<String, Module>> = texts
        .iter()
        .map(|(module, text)| (module, uses(text).filter(|(is_public, _)| *is_public)))
        .map(|(module, uses)| {
            let paths =
                uses.flat_map(|(_, tree)| expand(tree)).filter_map(|path| absolute(module, &path, is_module));
            (module, paths.filter_map(|path| Some((path.last()?.clone(), path))).collect())
        })
        .collect();
    let resolve = |mut path: Module| {
        loop {
            let depth = (0..=path.len()).rev().find(|&depth| texts.contains_key(&path[..depth])).unwrap();
            let module = path[..depth].to_vec();
            match path.get(depth).and_then(|name| reexports[&module].get(name)) {
                Some(item) => path = item.iter().chain(&path[depth + 1..]).cloned().collect(),
                None => return module,
            }
        }
    };
    let imports = |module: &Module, text: &str| {
        let paths = uses(text).flat_map(|(_, tree)| expand(tree)).chain(inline_paths(text));
        let imported = paths.filter_map(|path| absolute(module, &path, is_module)).map(&resolve);
        // The root re-exports the public items; importing them from there is another test's concern.
        imported.filter(|imported| imported != module && !imported.is_empty()).collect()
    };
    texts.iter().map(|(module, text)| (module.clone(), imports(module, text))).collect()
}

/// Reads the imports between the rooms of a crate. Files within a room may know each other.
pub fn of_rooms(source: &Path) -> Imports {
    let room_of = |module: &Module| Some(vec![module.first()?.clone()]);
    let mut rooms = Imports::new();
    for (module, imported) in of_crate(source) {
        let Some(room) = room_of(&module) else { continue };
        let others = imported.iter().filter_map(room_of).filter(|other| *other != room);
        let others: Vec<Module> = others.collect();
        rooms.entry(room).or_default().extend(others);
    }
    rooms
}

/// Returns modules that import each other in a circle, in the order of their imports, if there are any.
pub fn cycle(imports: &Imports) -> Option<Vec<String>> {
    let path_back = |from: &Module, to: &Module| {
        let mut paths = vec![vec![from.clone()]];
        let mut reached = BTreeSet::from([from.clone()]);
        while let Some(path) = paths.pop() {
            if path.last() == Some(to) {
                return Some(path);
            }
            for next in imports.get(path.last()?).into_iter().flatten() {
                if reached.insert(next.clone()) {
                    paths.push(path.iter().chain([next]).cloned().collect());
                }
            }
        }
        None
    };
    let mut edges = imports.iter().flat_map(|(from, all)| all.iter().map(move |to| (from, to)));
    let cycle = edges.find_map(|(from, to)| path_back(to, from))?;
    Some(cycle.iter().map(|module| module.join("::")).collect())
}

/// Returns the text without comments and without its unit tests.
pub fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    // A visibility is no import.
    let text = text.replace("(in crate::", "(in ");
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Returns the trees of all `use` items, and whether each is a re-export.
fn uses(text: &str) -> impl Iterator<Item = (bool, &str)> {
    text.split(';').filter_map(|item| {
        let (before, tree) = item.rsplit_once("use ")?;
        let visibility = before.lines().last().unwrap_or_default().trim();
        let is_use = visibility.is_empty() || visibility.starts_with("pub");
        (before.is_empty() || before.ends_with(char::is_whitespace))
            .then_some((visibility.starts_with("pub"), tree))
            .filter(|_| is_use)
    })
}

/// Returns the paths of a `use` tree: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn expand(tree: &str) -> Vec<String> {
    let Some((prefix, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        return vec![path.split_whitespace().collect()];
    };
    let prefix: String = prefix.split_whitespace().collect();
    let body = rest.rsplit_once('}').map_or(rest, |(body, _)| body);
    let mut depth = 0;
    let parts = body.split(|letter: char| {
        depth += i32::from(letter == '{') - i32::from(letter == '}');
        letter == ',' && depth == 0
    });
    let parts = parts.filter(|part| !part.trim().is_empty());
    parts.flat_map(expand).map(|path| format!("{prefix}{path}")).collect()
}

/// Returns the paths that code names. Leaves out the prefixes of `use` trees, which end with colons.
fn inline_paths(text: &str) -> impl Iterator<Item = String> {
    let is_of_path = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
    text.split(move |letter| !is_of_path(letter))
        .filter(|path| path.contains("::") && !path.ends_with(':'))
        .map(str::to_owned)
}

/// Returns a path from the crate root. `None` for a path of another crate.
fn absolute(module: &Module, path: &str, is_module: impl Fn(&Module) -> bool) -> Option<Module> {
    let mut names = path.split("::").filter(|name| *name != "*").peekable();
    let child = |name: &str| module.iter().cloned().chain([name.to_owned()]).collect();
    let mut start = match *names.peek()? {
        "crate" => Module::new(),
        "self" | "super" => module.clone(),
        name if is_module(&child(name)) => module.clone(),
        _ => return None,
    };
    while let Some(name) = names.next_if(|name| ["crate", "self", "super"].contains(name)) {
        if name == "super" {
            start.pop();
        }
    }
    // `self` at the end of a tree names the module before it.
    Some(start.into_iter().chain(names.filter(|name| *name != "self").map(str::to_owned)).collect())
}

#[test]
fn imports_are_parsed() {
    let texts = "pub(crate) use self::child::{Child, deep::{A as B, C}};\nuse crate::other::*;\nfn f() { super::g() }";
    let found: Vec<_> = uses(texts).collect();
    assert_eq!(found.len(), 2);
    assert!(found[0].0 && !found[1].0);
    assert_eq!(expand(found[0].1), ["self::child::Child", "self::child::deep::A", "self::child::deep::C"]);
    let module = vec!["a".to_owned(), "b".to_owned()];
    let path = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect::<Module>());
    let is_module = |module: &Module| module.last().is_some_and(|name| name == "child");
    assert_eq!(absolute(&module, "super::g", is_module), path(&["a", "g"]));
    assert_eq!(absolute(&module, "child::g", is_module), path(&["a", "b", "child", "g"]));
    assert_eq!(absolute(&module, "std::fmt", is_module), None);
}

#[test]
fn a_cycle_over_three_files_is_found() {
    let module = |name: &str| vec![name.to_owned()];
    let mut imports = Imports::from([
        (module("a"), BTreeSet::from([module("b")])),
        (module("b"), BTreeSet::from([module("c"), module("d")])),
        (module("c"), BTreeSet::new()),
    ]);
    assert_eq!(cycle(&imports), None);
    imports.insert(module("d"), BTreeSet::from([module("a")]));
    assert_eq!(cycle(&imports).unwrap(), ["b", "d", "a"]);
}
