//! Imports go one way, between modules (the top-level files and folders of `src`) and between the
//! files of a module. docs/architecture.md explains the table: change both together.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each module with the modules that it imports, which come before it.
const ARROWS: &[(&str, &[&str])] = &[
    ("cgroup_path", &[]),
    ("clock", &[]),
    ("contract", &[]),
    ("identity", &["cgroup_path"]),
    ("cluster", &["contract", "identity"]),
    ("kernel", &["cgroup_path"]),
    ("sample", &["clock", "identity", "kernel"]),
    ("collector", &["cgroup_path", "clock", "identity", "kernel", "sample"]),
    ("rates", &["identity", "kernel", "sample"]),
    ("score", &["clock", "contract", "identity", "kernel", "rates", "sample"]),
    ("publish", &["cluster", "contract", "rates", "score"]),
    ("sampler", &["clock", "identity", "rates", "collector", "sample"]),
    ("serve", &["clock", "cluster"]),
    ("health", &["clock", "cluster", "kernel", "sample", "serve"]),
    ("snapshot", &["cgroup_path", "health", "identity", "kernel", "rates", "sample", "score"]),
    (
        "export",
        &[
            "clock", "health", "identity", "kernel", "rates", "sample", "sampler", "score",
            "serve", "snapshot",
        ],
    ),
    ("reap", &["cluster", "contract"]),
    ("nodes", &["cluster", "contract"]),
    (
        "config",
        &[
            "cluster",
            "contract",
            "kernel",
            "export",
            "publish",
            "collector",
            "reap",
            "sample",
            "score",
            "serve",
        ],
    ),
    ("bridge", &["clock", "cluster", "config", "contract", "health", "serve"]),
    ("host", &["config", "kernel", "collector", "sample"]),
    ("pod_source", &["clock", "cluster", "config", "health", "identity", "sampler"]),
    (
        "agent",
        &[
            "clock",
            "cluster",
            "config",
            "contract",
            "health",
            "host",
            "kernel",
            "export",
            "pod_source",
            "publish",
            "sample",
            "sampler",
            "score",
            "serve",
        ],
    ),
    (
        "once",
        &[
            "clock",
            "config",
            "health",
            "host",
            "kernel",
            "export",
            "pod_source",
            "rates",
            "sample",
            "score",
        ],
    ),
    (
        "top",
        &[
            "cluster",
            "config",
            "health",
            "host",
            "pod_source",
            "sample",
            "sampler",
            "score",
            "snapshot",
        ],
    ),
    (
        "check",
        &[
            "cgroup_path",
            "clock",
            "cluster",
            "config",
            "host",
            "kernel",
            "pod_source",
            "collector",
            "sample",
            "serve",
        ],
    ),
];

/// Libraries and functions that only these modules and files use.
const FENCES: &[(&str, &[&str])] = &[
    ("std::fs", &["kernel", "identity/pods_file", "serve/tls"]),
    ("nix::", &["kernel"]),
    ("inotify::", &["kernel/cgroup_watch", "kernel/cgroup_tree"]),
    ("procfs::", &["kernel"]),
    ("prometheus::", &["health"]),
    (
        "hyper::",
        &["bridge/service", "export/http", "serve/body", "serve/connections", "top/client"],
    ),
    ("hyper_util::", &["serve/connections", "top/client"]),
    ("tokio_rustls", &["serve/connections", "serve/tls"]),
    ("ring::", &["serve"]),
    ("crossterm::", &["top/screen", "nodes"]),
    ("flate2", &["serve/compression"]),
    ("clap", &["config", "main", "export/families"]),
    ("anyhow", &["agent", "bridge", "once", "check", "main", "nodes", "pod_source", "reap", "top"]),
    ("kube::", &["cluster"]),
    ("k8s_openapi", &["cluster"]),
    ("Instant::now", &["clock"]),
    ("SystemTime::now", &["clock"]),
    ("Timestamp::now", &["clock"]),
];

/// Paths of the source files without `src/` and `.rs`, with their code: no comments, no tests.
fn source_files() -> BTreeMap<String, String> {
    fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                walk(&entry.path(), files);
            } else if entry.path().extension().is_some_and(|extension| extension == "rs") {
                files.push(entry.path());
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    walk(&root.join("src"), &mut files);
    walk(&root.join("contract/src"), &mut files);
    let named = files.into_iter().map(|path| {
        let name = path.strip_prefix(root).unwrap().with_extension("");
        let text = fs::read_to_string(&path).unwrap();
        // Tests may import more than the code that they test.
        let code = text.split("#[cfg(test)]").next().unwrap();
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        // The member `contract` is a module like any in `src`.
        let name = name.to_str().unwrap().replacen("contract/src/lib", "contract", 1);
        let name = name.replacen("contract/src", "contract", 1);
        (name.trim_start_matches("src/").to_owned(), lines.collect::<Vec<_>>().join("\n"))
    });
    named.filter(|(name, _)| !name.ends_with("tests")).collect()
}

fn module_of(file: &str) -> &str {
    file.split('/').next().unwrap()
}

fn is_below(file: &str, folder: &str) -> bool {
    file.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

/// The places in the code where a word begins, and does not continue a longer one.
fn places<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = &'a str> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let found = code.match_indices(word);
    found.filter(move |(at, _)| !code[..*at].ends_with(is_part)).map(|(at, _)| &code[at..])
}

/// The paths at the beginning of a text: `a::{b, c::d}` has `a::b` and `a::c::d`.
fn paths(text: &str) -> Vec<String> {
    if let Some(list) = text.strip_prefix('{') {
        return members(list).into_iter().flat_map(paths).collect();
    }
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let below = match rest.strip_prefix("::") {
        Some(rest) => paths(rest),
        None => vec![],
    };
    if below.is_empty() {
        return vec![name.to_owned()];
    }
    below.into_iter().map(|path| format!("{name}::{path}")).collect()
}

/// The members of a list up to its closing brace, at its own level alone.
fn members(list: &str) -> Vec<&str> {
    let (mut depth, mut start, mut members) = (0, 0, vec![]);
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            '}' | ',' if depth == 0 => {
                members.push(list[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
        if c == '}' && start == at + 1 {
            break;
        }
    }
    members
}

/// The file in which a path ends, as seen from a folder: the longest part of it that is a file.
fn file_of(folder: &str, path: &str, files: &BTreeMap<String, String>) -> Option<String> {
    let (mut found, mut file) = (folder.to_owned(), folder.to_owned());
    for name in path.split("::") {
        file = if file.is_empty() { name.to_owned() } else { format!("{file}/{name}") };
        if files.contains_key(&file) {
            found.clone_from(&file);
        }
    }
    (!found.is_empty()).then_some(found)
}

/// The files that each file imports from by `crate::`, by `super::` or by a child's name.
fn imports() -> BTreeMap<String, BTreeSet<String>> {
    let files = source_files();
    let of_file = |file: &String, code: &String| {
        let parent = file.rsplit_once('/').map_or("", |(parent, _)| parent);
        let children = files.keys().filter(|name| {
            is_below(name, file) && name.matches('/').count() == file.matches('/').count() + 1
        });
        let children = children
            .map(|name| (format!("{}::", name.rsplit('/').next().unwrap()), file.as_str(), 0));
        let bases = [("crate::".to_owned(), "", 7), ("super::".to_owned(), parent, 7)];
        let mut used = BTreeSet::new();
        for (word, folder, skipped) in children.chain(bases) {
            for place in places(code, &word) {
                used.extend(
                    paths(&place[skipped..])
                        .iter()
                        .filter_map(|path| file_of(folder, path, &files)),
                );
            }
        }
        used.remove(file);
        used
    };
    let of_modules = files.iter().filter(|(file, _)| !["lib", "main"].contains(&file.as_str()));
    of_modules.map(|(file, code)| (file.clone(), of_file(file, code))).collect()
}

#[test]
fn every_arrow_between_modules_is_in_the_table_and_goes_one_way() {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (file, used) in imports() {
        let module = module_of(&file);
        let used = used.iter().map(|file| module_of(file)).filter(|used| *used != module);
        found.entry(module.to_owned()).or_default().extend(used.map(str::to_owned));
    }
    let expected: BTreeMap<String, BTreeSet<String>> = ARROWS
        .iter()
        .map(|(module, uses)| ((*module).into(), uses.iter().map(|name| (*name).into()).collect()))
        .collect();
    assert_eq!(found, expected);
    for (at, (module, uses)) in ARROWS.iter().enumerate() {
        for used in *uses {
            let earlier = ARROWS[..at].iter().any(|(name, _)| name == used);
            assert!(earlier, "{module} imports {used}, which comes later");
        }
    }
}

/// A file imports no file that imports it, directly or through others. A module may import its
/// children, so they do not import it.
#[test]
fn no_file_imports_from_one_that_depends_on_it() {
    let imports = imports();
    let (to_parents, ahead): (Vec<_>, Vec<_>) = imports
        .iter()
        .flat_map(|(file, used)| used.iter().map(move |used| (file.as_str(), used.as_str())))
        .partition(|(file, used)| is_below(file, used));
    let depends_on = |from: &str, on: &str| {
        let (mut seen, mut pending) = (BTreeSet::new(), vec![from]);
        while let Some(file) = pending.pop() {
            if seen.insert(file) {
                pending.extend(ahead.iter().filter(|(of, _)| *of == file).map(|(_, used)| *used));
            }
        }
        seen.contains(on)
    };
    let cycles = ahead.iter().filter(|(file, used)| depends_on(used, file));
    let found: BTreeSet<String> = to_parents
        .iter()
        .chain(cycles)
        .map(|(file, used)| format!("{file} imports {used}"))
        .collect();
    assert_eq!(found, BTreeSet::new());
}

#[test]
fn what_touches_the_world_stays_in_its_module() {
    for (file, code) in source_files() {
        for (word, modules) in FENCES {
            let allowed = modules.iter().any(|module| file == *module || is_below(&file, module));
            assert!(allowed || places(&code, word).next().is_none(), "{file} uses {word}");
        }
    }
}

#[test]
fn every_module_is_described() {
    let page =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/architecture.md"))
            .unwrap();
    for file in source_files().keys() {
        let module = module_of(file);
        let rows = [format!("{module}.rs`"), format!("{module}/`")];
        let is_described = rows
            .iter()
            .any(|row| page.contains(&format!("`{row}")) || page.contains(&format!("`src/{row}")));
        assert!(is_described, "docs/architecture.md has no row for {module}");
    }
}
