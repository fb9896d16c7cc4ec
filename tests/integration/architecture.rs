//! Imports go one way, and what touches the world stays in its room. The table is the picture of
//! docs/architecture.md; a new arrow is a decision, made there and here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each room, in the order of the data, with the rooms that it may look into.
const ARROWS: &[(&str, &[&str])] = &[
    ("cgroup_path", &[]),
    ("clock", &[]),
    ("contract", &[]),
    ("cluster", &["contract"]),
    ("identity", &["cgroup_path"]),
    ("kernel", &["cgroup_path"]),
    ("sample", &["clock", "identity", "kernel"]),
    ("reader", &["cgroup_path", "clock", "identity", "kernel", "sample"]),
    ("rates", &["identity", "kernel", "sample"]),
    ("score", &["clock", "contract", "identity", "kernel", "rates", "sample"]),
    ("publish", &["cluster", "contract", "rates", "score"]),
    ("sampler", &["clock", "identity", "rates", "reader", "sample"]),
    ("serve", &["clock", "cluster"]),
    ("health", &["cluster", "kernel", "sample", "serve"]),
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
            "cluster", "contract", "kernel", "export", "publish", "reader", "reap", "sample",
            "score", "serve",
        ],
    ),
    ("bridge", &["clock", "cluster", "config", "contract", "health", "serve"]),
    ("host", &["config", "kernel", "reader", "sample"]),
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
            "reader",
            "sample",
            "serve",
        ],
    ),
];

/// What only some files may use.
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
    ("kube::", &["cluster", "identity/pod_watch"]),
    ("k8s_openapi", &["cluster", "identity/pod_watch"]),
    ("Instant::now", &["clock"]),
    ("SystemTime::now", &["clock"]),
    ("Timestamp::now", &["clock"]),
];

fn source_files() -> Vec<(String, String)> {
    fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                walk(&entry.path(), files);
            } else if entry.path().extension().is_some_and(|extension| extension == "rs") {
                files.push(entry.path());
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    walk(&root, &mut files);
    let named = files.into_iter().map(|path| {
        let name = path.strip_prefix(&root).unwrap().with_extension("");
        let text = fs::read_to_string(&path).unwrap();
        // Tests may reach further than what they test.
        let code = text.split("#[cfg(test)]").next().unwrap().to_owned();
        let code: Vec<&str> =
            code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        (name.to_str().unwrap().to_owned(), code.join("\n"))
    });
    named.filter(|(name, _)| !name.ends_with("tests")).collect()
}

fn room_of(file: &str) -> &str {
    file.split('/').next().unwrap()
}

/// Rooms named after `crate::` in a text.
fn rooms_used(code: &str) -> BTreeSet<String> {
    let after = code.split("crate::").skip(1);
    let names = after.map(|rest| {
        rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>()
    });
    names.filter(|name| !name.is_empty()).collect()
}

#[test]
fn every_arrow_is_in_the_table_and_goes_one_way() {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (file, code) in source_files() {
        let room = room_of(&file).to_owned();
        if room == "lib" || room == "main" {
            continue;
        }
        let used = rooms_used(&code).into_iter().filter(|name| *name != room);
        found.entry(room.clone()).or_default().extend(used);
    }
    let expected: BTreeMap<String, BTreeSet<String>> = ARROWS
        .iter()
        .map(|(room, uses)| ((*room).into(), uses.iter().map(|name| (*name).into()).collect()))
        .collect();
    assert_eq!(found, expected);
    for (at, (room, uses)) in ARROWS.iter().enumerate() {
        for used in *uses {
            let earlier = ARROWS[..at].iter().any(|(name, _)| name == used);
            assert!(earlier, "{room} looks into {used}, which comes later");
        }
    }
}

#[test]
fn what_touches_the_world_stays_in_its_room() {
    for (file, code) in source_files() {
        for (word, rooms) in FENCES {
            let allowed = rooms.iter().any(|room| {
                file == *room || file.strip_prefix(room).is_some_and(|rest| rest.starts_with('/'))
            });
            assert!(allowed || !uses(&code, word), "{file} uses {word}");
        }
    }
}

/// Whether a word stands in the code as a name of its own.
fn uses(code: &str, word: &str) -> bool {
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

#[test]
fn there_is_no_room_without_a_line_in_the_picture() {
    let picture =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/architecture.md"))
            .unwrap();
    for (file, _) in source_files() {
        let shown = format!("`{file}.rs`");
        assert!(picture.contains(&shown), "docs/architecture.md has no {shown}");
    }
}
