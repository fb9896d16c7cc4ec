//! The image that `daemonset/image` makes, and its twin for engines, `Containerfile`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::agent::BINARY;
use crate::support::virtual_machine::static_binary;

const REPOSITORY: &str = env!("CARGO_MANIFEST_DIR");

fn make(to: &Path, more: &[&str]) -> Output {
    let script = Path::new(REPOSITORY).join("daemonset/image");
    Command::new(script).arg(to).args(more).output().expect("daemonset/image needs Python")
}

fn of(image: &Path, file: &str) -> Value {
    let output = Command::new("tar").arg("-xOf").arg(image).arg(file).output().unwrap();
    assert!(output.status.success(), "{file}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The file that a descriptor stands for.
fn blob(descriptor: &Value) -> String {
    descriptor["digest"].as_str().unwrap().replace("sha256:", "blobs/sha256/")
}

fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("image-{}-{name}", std::process::id()))
}

#[test]
#[ignore = "needs Python and the static binary: tests/run builds it"]
fn image_is_the_binary_alone_and_the_same_each_time() {
    let binary = static_binary();
    let [first, second] = ["first", "second"].map(scratch);
    for image in [&first, &second] {
        let made = make(image, &["--binary", binary.to_str().unwrap()]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
    assert_eq!(fs::read(&first).unwrap(), fs::read(&second).unwrap());

    let manifest = of(&first, &blob(&of(&first, "index.json")["manifests"][0]));
    assert_eq!(manifest["layers"].as_array().unwrap().len(), 1);
    let config = of(&first, &blob(&manifest["config"]))["config"].clone();
    let containerfile = fs::read_to_string(Path::new(REPOSITORY).join("Containerfile")).unwrap();
    let line = |word: &str| containerfile.lines().find_map(|line| line.strip_prefix(word)).unwrap();
    let entrypoint: Value = serde_json::from_str(line("ENTRYPOINT ")).unwrap();
    assert_eq!(config, json!({"User": line("USER "), "Entrypoint": entrypoint}));
    let copied = line("COPY ").split_once(' ').unwrap();
    assert_eq!(copied, ("target/x86_64-unknown-linux-gnu/dist/psi-agent", "/psi-agent"));
    assert_eq!(entrypoint, json!(["/psi-agent"]));

    let listed = "tar -xOf \"$0\" \"$1\" | tar -tv --numeric-owner";
    let layer = blob(&manifest["layers"][0]);
    let listed = Command::new("bash").args(["-c", listed]).arg(&first).arg(layer).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.starts_with("-rwxr-xr-x 0/0") && listed.ends_with(" psi-agent\n"), "{listed}");
    assert_eq!(listed.lines().count(), 1, "{listed}");
    for image in [first, second] {
        fs::remove_file(image).unwrap();
    }
}

/// The script looks at a program's header alone, where this says which machine it is for.
fn for_arm(program: &[u8]) -> Vec<u8> {
    let (at, arm) = (18, 0xb7_u16.to_le_bytes());
    [&program[..at], &arm, &program[at + arm.len()..]].concat()
}

#[test]
#[ignore = "needs Python and the static binary: tests/run builds it"]
fn programs_of_two_architectures_make_an_index_with_an_image_for_each() {
    let (binary, folder) = (static_binary(), scratch("arm"));
    fs::create_dir_all(&folder).unwrap();
    let (arm, image) = (folder.join("psi-agent"), folder.join("image.tar"));
    fs::write(&arm, for_arm(&fs::read(&binary).unwrap())).unwrap();
    let [first, second] = [&binary, &arm].map(|path| path.to_str().unwrap());
    let made = make(&image, &["--binary", first, "--binary", second]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let named = of(&image, "index.json")["manifests"].clone();
    assert_eq!(named.as_array().unwrap().len(), 1);
    let digest = named[0]["digest"].as_str().unwrap();
    assert!(String::from_utf8_lossy(&made.stdout).trim().ends_with(digest));
    let images = of(&image, &blob(&named[0]))["manifests"].as_array().unwrap().clone();
    let mut found = Vec::new();
    for image_of_one in &images {
        let architecture = image_of_one["platform"]["architecture"].as_str().unwrap();
        let manifest = of(&image, &blob(image_of_one));
        let config = of(&image, &blob(&manifest["config"]));
        assert_eq!(config["architecture"], architecture);
        assert_eq!(config["rootfs"]["diff_ids"][0], manifest["layers"][0]["digest"]);
        found.push(architecture);
    }
    assert_eq!(found, ["amd64", "arm64"]);
    let twice = make(&image, &["--binary", first, "--binary", first]);
    assert!(String::from_utf8_lossy(&twice.stderr).contains("another program for amd64"));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
#[ignore = "needs Python: tests/run installs it"]
fn image_of_what_would_not_run_is_refused() {
    let image = scratch("refused");
    let (manifest, nowhere) = (format!("{REPOSITORY}/Cargo.toml"), format!("{REPOSITORY}/nowhere"));
    for (flags, complaint) in [
        (["--binary", BINARY], "needs a dynamic loader"),
        (["--binary", &manifest], "is no 64-bit little-endian program for Linux"),
        (["--binary", &nowhere], "nowhere: No such file or directory"),
        (["--name", "psi-agent"], "write REGISTRY/NAME:TAG"),
    ] {
        let refused = make(&image, &flags);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains(complaint), "{flags:?}: {said}");
        assert!(!image.exists());
    }
}
