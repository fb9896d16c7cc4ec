//! A folder of a test's own, removed when dropped.

use std::fs;
use std::path::{Path, PathBuf};

/// The folder, by its path.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    /// An empty folder whose name no other test and no other process uses.
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir();
        let path = path.join(format!("psi-agent-test-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Its own path, for a command line.
    pub(crate) fn text(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// The path of something in it.
    pub(crate) fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }

    /// The same, for a command line.
    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// Writes a file, and makes the folders above it.
    pub(crate) fn write(&self, file: &str, text: &str) {
        let path = self.0.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Writes a file in one step: a reader gets the old text or the new one, never a part.
    pub(crate) fn replace(&self, file: &str, text: &str) {
        let part = self.0.join("new.part");
        fs::write(&part, text).unwrap();
        fs::rename(part, self.0.join(file)).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
