//! Writes one module for each variant of each part. One variant is the unchanged production files. Each
//! planted weakening is a variant with its text replaced. Each variant has a copy of the part's models.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

include!("weakenings.rs");

/// The variant without a weakening.
const RIGHT: &str = "right";

fn main() {
    let models = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=weakenings.rs");
    let mut modules = String::new();
    for part in PARTS {
        let name = part.name;
        let _ = writeln!(modules, "mod {name} {{");
        let mut tests = String::new();
        for model in part.models {
            let _ = write!(tests, "#[test] fn {model}() {{ crate::check::holds(model::{model}); }} ");
        }
        write_variant(&mut modules, part, RIGHT, &[], &tests, &models, &out);
        for Weakening { name, replacements, caught_by } in part.weakenings {
            assert!(
                part.models.contains(caught_by),
                "{name} is to be caught by {caught_by}, which is no model"
            );
            let test = format!(
                "#[test] fn is_caught() {{ crate::check::is_caught(model::{caught_by}, {caught_by:?}); }}"
            );
            write_variant(&mut modules, part, name, replacements, &test, &models, &out);
        }
        modules += "}\n";
    }
    fs::write(out.join("variants.rs"), modules).expect("can be written");
}

/// Adds the module of one variant: its copies of the production files, the models, and its tests.
fn write_variant(
    modules: &mut String,
    part: &Part,
    variant: &str,
    replacements: &[Replacement],
    tests: &str,
    models: &Path,
    out: &Path,
) {
    let folder = out.join(part.name).join(variant);
    fs::create_dir_all(&folder).expect("can be made");
    let model = models.join("src").join(part.name).with_extension("rs");
    let production = part.files.iter().map(|file| models.join("../src").join(file));
    let mut unused: Vec<_> = part.reductions.iter().chain(replacements).collect();
    // Models use only some items. Planted bugs need not satisfy the lints.
    let allowed = if variant == RIGHT { "dead_code" } else { "warnings, clippy::all" };
    let _ = writeln!(modules, "#[allow({allowed})] mod {variant} {{");
    for source in production.chain([model.clone()]) {
        println!("cargo::rerun-if-changed={}", source.display());
        let text = fs::read_to_string(&source).expect("a source file");
        // Unit tests use the primitives without a model.
        let mut text = text.split("#[cfg(test)]").next().expect("text before").to_owned();
        unused.retain(|(right, wrong)| {
            assert!(
                text.matches(right).count() <= 1,
                "{}: `{right}` is there more than once",
                source.display()
            );
            let is_there = text.contains(right);
            text = text.replace(right, wrong);
            !is_there
        });
        let module = if source == model { "model" } else { module_name(&source) };
        let copy = folder.join(module).with_extension("rs");
        fs::write(&copy, text).expect("can be written");
        let _ = writeln!(modules, "#[path = {copy:?}] mod {module};");
    }
    assert!(unused.is_empty(), "{}: not found: {unused:?}", part.name);
    let _ = writeln!(modules, "{tests}\n}}");
}

fn module_name(source: &Path) -> &str {
    source.file_stem().and_then(|stem| stem.to_str()).expect("a Rust file")
}
