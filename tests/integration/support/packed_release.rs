//! The files of a release, made by `release/package` from the programs that the tests built.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::agent::BINARY;
use super::folder::Folder;
use super::virtual_machine::static_binary;

const REPOSITORY: &str = env!("CARGO_MANIFEST_DIR");

/// Name of the folder in the archive of manifests, and of the archive without its ending.
pub(crate) const MANIFESTS: &str = concat!("psi-agent-", env!("CARGO_PKG_VERSION"), "-manifests");

/// File of the chart.
pub(crate) const CHART: &str = concat!("psi-agent-", env!("CARGO_PKG_VERSION"), ".tgz");

/// File of the image.
pub(crate) const IMAGE: &str = concat!("psi-agent-", env!("CARGO_PKG_VERSION"), "-image.tar");

/// Removed when dropped.
pub(crate) struct PackedRelease {
    folder: Folder,
}

impl PackedRelease {
    pub(crate) fn new(name: &str) -> Self {
        Self::with(name, &[])
    }

    /// With more flags of `release/package`.
    pub(crate) fn with(name: &str, flags: &[&str]) -> Self {
        let folder = Folder::new(&format!("release-{name}"));
        let programs = folder.join("programs/amd64");
        fs::create_dir_all(&programs).unwrap();
        fs::create_dir(folder.join("files")).unwrap();
        let plugin = plugin();
        for (program, name) in [(static_binary(), "psi-agent"), (plugin, "kubectl-psi")] {
            symlink(program, programs.join(name)).unwrap();
        }
        let packed = Command::new(Path::new(REPOSITORY).join("release/package"))
            .arg(folder.join("programs"))
            .arg(folder.join("files"))
            .args(flags)
            .output()
            .unwrap();
        assert!(packed.status.success(), "{}", String::from_utf8_lossy(&packed.stderr));
        Self { folder }
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.folder.join("files")
    }

    pub(crate) fn files(&self) -> Vec<String> {
        let files = fs::read_dir(self.folder()).unwrap().map(|file| file.unwrap().file_name());
        let mut files: Vec<String> = files.map(|name| name.into_string().unwrap()).collect();
        files.sort();
        files
    }

    /// Unpacks an archive, given without its ending `.tar.gz`.
    pub(crate) fn unpack(&self, archive: &str, to: &Path) {
        let archive = self.folder().join(format!("{archive}.tar.gz"));
        let unpacked = Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(to).status();
        assert!(unpacked.unwrap().success());
    }
}

/// The plugin, which is built beside the agent.
pub(crate) fn plugin() -> PathBuf {
    let plugin = Path::new(BINARY).with_file_name("kubectl-psi");
    assert!(plugin.is_file(), "{} is missing: cargo build -p kubectl-psi", plugin.display());
    plugin
}
