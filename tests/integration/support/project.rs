//! The files of this project, by their paths below its root.

use std::fs;
use std::path::{Path, PathBuf};

pub(crate) const ROOT: &str = env!("CARGO_MANIFEST_DIR");

pub(crate) fn path(file: &str) -> PathBuf {
    Path::new(ROOT).join(file)
}

pub(crate) fn text(file: &str) -> String {
    fs::read_to_string(path(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

pub(crate) fn yaml(file: &str) -> serde_json::Value {
    serde_saphyr::from_str(&text(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// All files below a folder whose names end so, in order. The folder `""` is the root; what is built
/// and what is hidden is not part of the project.
pub(crate) fn files(folder: &str, ending: &str) -> Vec<String> {
    let entries = fs::read_dir(path(folder)).unwrap_or_else(|error| panic!("{folder}: {error}"));
    let mut entries: Vec<_> = entries.map(Result::unwrap).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    let mut files = Vec::new();
    for entry in entries {
        let name = entry.file_name().into_string().unwrap();
        let file = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        let kind = entry.file_type().unwrap();
        if kind.is_dir() && !name.starts_with('.') && name != "target" {
            files.extend(self::files(&file, ending));
        } else if kind.is_file() && name.ends_with(ending) {
            files.push(file);
        }
    }
    files
}
