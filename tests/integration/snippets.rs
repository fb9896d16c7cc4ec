//! What docs/consumers tells users to copy is what the tests applied: each YAML block of a page is a
//! file of docs/consumers/snippets, named in the line above it, and each file is shown by a page and
//! used by a test.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Files by their names.
type Files = BTreeMap<String, String>;

/// A block of YAML on a page.
#[derive(Debug, PartialEq)]
struct Block {
    /// The page, and the line on which the block begins.
    at: String,
    /// The file that the line above names.
    file: Option<String>,
    text: String,
}

fn of_project(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

/// The files of a folder, without its folders.
fn files(folder: &str) -> Files {
    let entries = fs::read_dir(of_project(folder)).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    entries
        .filter(|path| path.is_file())
        .map(|path| (name(&path), fs::read_to_string(&path).unwrap()))
        .collect()
}

/// All blocks of a page that call themselves YAML.
fn blocks(page: &str, text: &str) -> Vec<Block> {
    let lines: Vec<&str> = text.lines().collect();
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (at, line) in lines.iter().enumerate() {
        let fence = line.trim_start().strip_prefix("```").map(str::trim);
        match (&mut open, fence) {
            (Some(_), Some("")) => blocks.extend(open.take()),
            (Some(block), _) => block.text += &format!("{line}\n"),
            (None, Some("yaml" | "yml")) => {
                let above = at.checked_sub(1).map_or("", |above| lines[above]);
                open = Some(Block {
                    at: format!("{page}:{}", at + 1),
                    file: named(above),
                    text: String::new(),
                });
            }
            (None, _) => {}
        }
    }
    assert_eq!(open, None, "{page}: a block without an end");
    blocks
}

/// `NAME.yaml` of `<!-- snippets/NAME.yaml -->`.
fn named(line: &str) -> Option<String> {
    let file = line.strip_prefix("<!-- snippets/")?.strip_suffix(" -->")?;
    Some(file.to_owned())
}

/// What is wrong with pages, snippets and the code of the tests that should use them.
fn faults(pages: &Files, snippets: &Files, tests: &str) -> Vec<String> {
    let shown: Vec<Block> = pages
        .iter()
        .flat_map(|(page, text)| blocks(&format!("docs/consumers/{page}"), text))
        .collect();
    let mut faults = Vec::new();
    for Block { at, file, text } in &shown {
        match file.as_ref().map(|file| (file, snippets.get(file))) {
            None => faults.push(format!("{at}: the line above names no snippet")),
            Some((file, None)) => faults.push(format!("{at}: there is no snippets/{file}")),
            Some((file, Some(there))) if there != text => {
                faults.push(format!("{at}: differs from snippets/{file}"));
            }
            Some((_, Some(_))) => {}
        }
    }
    for file in snippets.keys() {
        if !shown.iter().any(|block| block.file.as_ref() == Some(file)) {
            faults.push(format!("snippets/{file}: no page shows it"));
        }
        if !tests.contains(&format!("\"{file}\"")) {
            faults.push(format!("snippets/{file}: no test uses it"));
        }
    }
    faults
}

#[test]
fn pages_show_the_snippets_that_tests_apply() {
    // This file's own names are examples.
    let code = ["tests/integration", "tests/integration/support"].map(files).into_iter().flatten();
    let tests: String =
        code.filter(|(name, _)| name != "snippets.rs").map(|(_, code)| code).collect();
    let (pages, snippets) = (files("docs/consumers"), files("docs/consumers/snippets"));
    assert!(!snippets.is_empty());
    let faults = faults(&pages, &snippets, &tests);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

const PAGE: &str =
    "Copy this:\n\n<!-- snippets/one.yaml -->\n```yaml\na: 1\n```\n\n```sh\nls\n```\n";

fn found(page: &str, snippets: &[(&str, &str)], tests: &str) -> Vec<String> {
    let file = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).to_owned());
    faults(&[file(&("page.md", page))].into(), &snippets.iter().map(file).collect(), tests)
}

#[test]
fn a_page_like_its_snippet_has_no_fault() {
    assert_eq!(found(PAGE, &[("one.yaml", "a: 1\n")], "snippet(\"one.yaml\")"), [""; 0]);
}

#[test]
fn a_page_that_differs_from_its_snippet_is_found() {
    let tests = "snippet(\"one.yaml\")";
    for other in ["a: 2\n", "a: 1", "a: 1\n\n", " a: 1\n"] {
        assert_eq!(
            found(PAGE, &[("one.yaml", other)], tests),
            ["docs/consumers/page.md:4: differs from snippets/one.yaml"]
        );
    }
    assert_eq!(
        found(PAGE, &[], tests),
        ["docs/consumers/page.md:4: there is no snippets/one.yaml"]
    );
}

#[test]
fn a_block_without_a_name_is_found() {
    let gap = PAGE.replace("-->\n", "-->\n\n");
    assert_eq!(found(&gap, &[], ""), ["docs/consumers/page.md:5: the line above names no snippet"]);
}

#[test]
fn a_snippet_that_nobody_shows_or_tests_is_found() {
    assert_eq!(
        found("Nothing\n", &[("one.yaml", "a: 1\n")], "snippet(\"none.yaml\")"),
        ["snippets/one.yaml: no page shows it", "snippets/one.yaml: no test uses it"]
    );
}
