//! `release/build` makes the same bytes in two folders and for two users, and `release/push` pushes them.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::support::folder::Folder;
use crate::support::free_port;
use crate::support::packed_release::PackedRelease;
use crate::support::{cache_dir, helm, wait_for};

const REPOSITORY: &str = env!("CARGO_MANIFEST_DIR");
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The uid of a user without rights.
const OTHER_USER: &str = "65534";

/// 12 MB, for each architecture.
const IMAGE_LIMIT: u64 = 12_000_000;

fn succeeded(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn text(command: &mut Command) -> String {
    String::from_utf8(succeeded(command).stdout).unwrap()
}

/// A folder with a clone of this repository.
fn cloned(name: &str) -> Folder {
    let folder = Folder::new(name);
    succeeded(Command::new("git").args(["clone", "-q", REPOSITORY]).arg(folder.join("psi-agent")));
    folder
}

/// Builds a release from the clone in a folder, and returns its path. `command` runs the script.
fn build(folder: &Folder, mut command: Command) -> PathBuf {
    let (clone, release) = (folder.join("psi-agent"), folder.join("release"));
    command.arg(clone.join("release/build")).arg(VERSION).arg("--output").arg(&release);
    succeeded(command.current_dir(&clone));
    release
}

/// Runs a command as another user, with a folder as its home. The compiler and the tests' cache are mounted
/// in that folder, since other users may not enter this user's home.
fn other_user(folder: &Folder) -> Command {
    let sysroot = text(Command::new("rustc").args(["--print", "sysroot"]));
    for mounted in ["rust", "cache/psi-agent"] {
        fs::create_dir_all(folder.join(mounted)).unwrap();
    }
    succeeded(Command::new("chown").args(["-R", OTHER_USER]).arg(&folder.0));
    let script =
        "mount --bind \"$1\" \"$0/rust\" && mount --bind \"$2\" \"$0/cache/psi-agent\" || exit
        owner=$3
        shift 3
        cd \"$0/psi-agent\" && exec setpriv --reuid \"$owner\" --clear-groups env -i HOME=\"$0\" \
            PATH=\"$0/rust/bin:$PATH\" XDG_CACHE_HOME=\"$0/cache\" \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "bash", "-c", script, folder.text(), sysroot.trim()]);
    command.arg(cache_dir()).arg(OTHER_USER);
    command
}

/// The crates that a program is linked with, as `NAME VERSION`.
fn linked(program: &str, target: &str) -> BTreeSet<String> {
    let tree = text(
        Command::new("cargo")
            .args(["tree", "--locked", "-e", "normal,no-proc-macro", "--prefix", "none"])
            .args(["-f", "{p}", "-p", program, "--target", target])
            .current_dir(REPOSITORY),
    );
    let crates = tree.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        Some(format!("{} {}", words.next()?, words.next()?.trim_start_matches('v')))
    });
    crates.filter(|it| it.split(' ').next() != Some(program)).collect()
}

#[test]
#[ignore = "needs git, gcc-aarch64-linux-gnu and qemu-user-static; compiles for an hour"]
fn a_release_is_whole_and_the_same_in_any_folder_and_for_any_user() {
    // Both are cloned first, so that a commit during the first build changes neither.
    let [ours, of_other] = ["release-ours", "release-of-other-user"].map(cloned);
    let first = build(&ours, Command::new("env"));
    let second = build(&of_other, other_user(&of_other));
    let same = Command::new("diff").arg("-r").args([&first, &second]).output().unwrap();
    assert!(same.status.success(), "{}", String::from_utf8_lossy(&same.stdout));

    succeeded(
        Command::new("sha256sum").args(["--check", "--quiet", "SHA256SUMS"]).current_dir(&first),
    );
    check_the_provenance(&first, &ours.join("psi-agent"));
    for program in ["psi-agent", "kubectl-psi"] {
        check_the_sbom(&first, program);
    }
    for architecture in ["amd64", "arm64"] {
        check_the_programs(&first, architecture);
    }
    let image = first.join(format!("psi-agent-{VERSION}-image.tar"));
    assert!(fs::metadata(image).unwrap().len() < 2 * IMAGE_LIMIT);
    let notes = fs::read_to_string(first.join("NOTES.md")).unwrap();
    assert!(notes.starts_with("Basis of the score:"), "{notes}");
}

#[test]
#[ignore = "needs skopeo, helm and what tests/registry/build makes"]
fn a_release_is_pushed_to_a_registry_and_its_chart_installs_from_there() {
    let registry = Registry::start();
    let repository = format!("{}/vms/psi-agent", registry.address);
    let release = PackedRelease::with("push", &["--repository", &repository]);
    succeeded(
        Command::new(Path::new(REPOSITORY).join("release/push"))
            .env("HELM", helm::program())
            .arg(release.folder())
            .args([&repository, "--plain-http"]),
    );
    let image = format!("docker://{repository}:{VERSION}");
    let mut inspect = Command::new("skopeo");
    inspect.args(["inspect", "--tls-verify=false", "--format", "{{.Digest}}", &image]);
    let expected = format!("{repository}@{}", text(&mut inspect).trim());
    let chart = format!("oci://{}/vms/charts/psi-agent", registry.address);
    let mut render = Command::new(helm::program());
    render.args(["template", "psi-agent", &chart, "--plain-http", "--version", VERSION]);
    let objects = text(&mut render);
    assert!(objects.contains(&format!("image: {expected}")), "no {expected} in {objects}");
}

/// A registry on this host. It ends when dropped.
struct Registry {
    address: String,
    _folder: Folder,
    process: Child,
}

impl Registry {
    fn start() -> Self {
        let (folder, address) = (Folder::new("registry"), format!("127.0.0.1:{}", free_port()));
        let config = folder.join("config.yaml");
        let storage = folder.join("storage");
        let text = format!(
            "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: '{address}'}}\n",
            storage.display()
        );
        fs::write(&config, text).unwrap();
        let program = cache_dir().join("registry-3.0.0/registry");
        let mut command = Command::new(program);
        let process = command.arg("serve").arg(config).stderr(Stdio::null()).spawn().unwrap();
        wait_for("the registry", Duration::from_secs(60), || TcpStream::connect(&address).ok());
        Self { address, _folder: folder, process }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn check_the_provenance(release: &Path, clone: &Path) {
    let statement = fs::read_to_string(release.join("provenance.intoto.json")).unwrap();
    let statement: Value = serde_json::from_str(&statement).unwrap();
    let named = statement["subject"].as_array().unwrap().iter();
    let named: BTreeSet<&str> = named.map(|it| it["name"].as_str().unwrap()).collect();
    let files = fs::read_dir(release).unwrap().map(|it| it.unwrap().file_name());
    let files: BTreeSet<String> = files.map(|it| it.into_string().unwrap()).collect();
    for file in &files {
        let is_about_others = ["SHA256SUMS", "provenance.intoto.json"].contains(&&**file);
        assert_eq!(named.contains(&**file), !is_about_others, "{file}");
    }
    let commit = text(Command::new("git").args(["rev-parse", "HEAD"]).current_dir(clone));
    let of = &statement["predicate"]["buildDefinition"]["resolvedDependencies"][0];
    assert_eq!(of["digest"]["gitCommit"], commit.trim());
}

fn check_the_sbom(release: &Path, program: &str) {
    let sbom = release.join(format!("{program}-{VERSION}.cdx.json"));
    let sbom: Value = serde_json::from_str(&fs::read_to_string(sbom).unwrap()).unwrap();
    let components = sbom["components"].as_array().unwrap();
    let listed: BTreeSet<String> = components
        .iter()
        .map(|it| format!("{} {}", it["name"].as_str().unwrap(), it["version"].as_str().unwrap()))
        .collect();
    for target in ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"] {
        let missing: Vec<_> = linked(program, target).difference(&listed).cloned().collect();
        assert_eq!(missing, [""; 0], "{program} for {target}");
    }
    let without_license = components.iter().filter(|it| it["licenses"][0].is_null());
    let without_license: Vec<_> = without_license.map(|it| it["name"].clone()).collect();
    assert_eq!(without_license, [Value::Null; 0], "{program}");
}

/// Programs start and read this host's files. Those of aarch64 run in an emulator.
fn check_the_programs(release: &Path, architecture: &str) {
    let folder = Folder::new(&format!("release-programs-{architecture}"));
    for program in ["psi-agent", "kubectl-psi"] {
        let archive = release.join(format!("{program}-{VERSION}-linux-{architecture}.tar.gz"));
        succeeded(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(&folder.0));
        let size = fs::metadata(folder.join(program)).unwrap().len();
        assert!(size < IMAGE_LIMIT, "{program}: {size} bytes");
    }
    let run = |program: &str, arguments: &[&str]| {
        let mut command = match architecture {
            "arm64" => Command::new("qemu-aarch64-static"),
            _ => Command::new("env"),
        };
        text(command.arg(folder.join(program)).args(arguments))
    };
    for program in ["psi-agent", "kubectl-psi"] {
        assert_eq!(run(program, &["--version"]), format!("{program} {VERSION}\n"));
    }
    let metrics = run("psi-agent", &["once"]);
    assert!(metrics.contains("\ncontainer_pressure_cpu_waiting_seconds_total{"), "{metrics}");
    assert!(metrics.contains("\nnode_pressure_cpu_waiting_seconds_total"), "{metrics}");
}
