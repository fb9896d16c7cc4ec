//! Runs the commands in the `sh` blocks of docs/install.md, with the files of a release.
//! The image is set in its kustomizations, as the documents describe.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::agent::BINARY;
use super::cluster::Cluster;
use super::helm;
use super::packed_release::{MANIFESTS, PackedRelease};
use super::project;
use super::virtual_machine::static_binary;

const DOCUMENT: &str = "docs/install.md";

const NAME_TO_REPLACE: &str = "registry.example/psi-agent";
const LABEL: &str = "components:\n- ../components/label\n";

/// A folder to follow the documents in; it ends with the value.
pub(crate) struct Checkout {
    pub(crate) folder: PathBuf,
}

impl Checkout {
    /// One whose kustomizations name this image: a release's files, its manifests unpacked, and what makes
    /// an image.
    pub(crate) fn naming(image: &str) -> Self {
        let release = PackedRelease::new("install");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let folder = folder.join(format!("install-{}", std::process::id()));
        let built = folder.join("target/x86_64-unknown-linux-gnu/dist");
        fs::create_dir_all(&built).unwrap();
        symlink(static_binary(), built.join("psi-agent")).unwrap();
        release.unpack(MANIFESTS, &folder);
        for part in ["daemonset", "grafana"] {
            fs::rename(folder.join(MANIFESTS).join(part), folder.join(part)).unwrap();
        }
        for file in release.files() {
            fs::copy(release.folder().join(&file), folder.join(&file)).unwrap();
        }
        for of_source in ["Cargo.toml", "daemonset/image"] {
            symlink(project::path(of_source), folder.join(of_source)).unwrap();
        }
        for kustomization in ["example", "uninstall"] {
            let file = folder.join("daemonset").join(kustomization).join("kustomization.yaml");
            let text = fs::read_to_string(&file).unwrap();
            assert!(text.contains(NAME_TO_REPLACE), "{text}");
            let own = text.replace(NAME_TO_REPLACE, image);
            // A component that the document describes.
            let label = if kustomization == "example" { LABEL } else { "" };
            fs::write(&file, own + label).unwrap();
        }
        Self { folder }
    }

    /// Runs a command as whoever administers the cluster; it must succeed.
    pub(crate) fn run(&self, command: &str, cluster: &Cluster) -> String {
        let own = Path::new(BINARY).parent().unwrap();
        let path = std::env::var("PATH").unwrap();
        let helm = helm::program();
        let helm = helm.parent().unwrap().display();
        let path = format!("{}:{}:{helm}:{path}", cluster.programs().display(), own.display());
        let output = Command::new("timeout")
            .args(["300", "bash", "-c", command])
            .current_dir(&self.folder)
            .env("PATH", path)
            .env("KUBECONFIG", cluster.admin_kubeconfig())
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {}: {said}{complaint}", output.status);
        said
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The commands that docs/install.md gives below a heading, in their order.
pub(crate) fn commands(heading: &str) -> Vec<String> {
    commands_of(DOCUMENT, heading)
}

/// The commands that a document gives below a heading, in their order.
pub(crate) fn commands_of(document: &str, heading: &str) -> Vec<String> {
    let text = project::text(document);
    let mut section = text.split("\n## ").skip(1);
    let section = section.find(|section| section.lines().next() == Some(heading));
    let section = section.unwrap_or_else(|| panic!("{document} has no part \"{heading}\""));
    let blocks = section.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let commands: Vec<String> = blocks.flat_map(of_block).collect();
    assert!(!commands.is_empty(), "{document} has no command in \"{heading}\"");
    commands
}

/// Line by line, without comments, continued lines put together.
fn of_block(block: &str) -> Vec<String> {
    let whole = block.replace("\\\n", " ");
    let lines = whole.lines().map(|line| line.split(" #").next().unwrap().trim());
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
}
