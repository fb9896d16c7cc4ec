//! The files of a release, packed with the programs that the tests built.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::cluster::Cluster;
use crate::support::folder::Folder;
use crate::support::packed_release::{CHART, IMAGE, MANIFESTS, PackedRelease, plugin};
use crate::support::{built, helm};

const REPOSITORY: &str = env!("CARGO_MANIFEST_DIR");
const VERSION: &str = env!("CARGO_PKG_VERSION");

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The image's digest in a registry.
fn digest(release: &PackedRelease) -> String {
    let index =
        ["-xOf", release.folder().join(IMAGE).to_str().unwrap(), "index.json"].map(str::to_owned);
    let index: Value = serde_json::from_str(&output(Command::new("tar").args(index))).unwrap();
    index["manifests"][0]["digest"].as_str().unwrap().to_owned()
}

/// The images that YAML objects name.
fn images(yaml: &str) -> Vec<String> {
    let lines = yaml.lines().map(|line| line.trim_start().trim_start_matches("- "));
    lines.filter_map(|line| line.strip_prefix("image: ")).map(|it| it.replace('"', "")).collect()
}

#[test]
#[ignore = "needs the static binary, the plugin, helm and kubectl: tests/run --cluster builds them"]
fn chart_and_manifests_of_a_release_name_its_image_by_digest_and_need_nothing_else() {
    let cluster = Cluster::start("release");
    let here = "registry.example/here";
    for repository in [None, Some(here)] {
        let flags = repository.map(|name| ["--repository", name]);
        let release = PackedRelease::with("digest", flags.as_ref().map_or(&[], |flags| flags));
        let name = repository.unwrap_or("psi-agent.invalid/set-your-registry");
        let expected = format!("{name}@{}", digest(&release));

        let mut render = Command::new(helm::program());
        render.args(["template", "psi-agent"]).arg(release.folder().join(CHART));
        render.args(["--set", "bridge.enabled=true,dashboards.enabled=true"]);
        if repository.is_none() {
            let refused = render.output().unwrap();
            let error = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert!(!refused.status.success() && error.contains("image.repository is empty"));
            render.args(["--set", &format!("image.repository={name}")]);
        }
        // Agent, reap, bridge, and the pods of `helm test` and of the Job after uninstallation.
        assert_eq!(images(&output(&mut render)), [&*expected; 5]);

        // Elsewhere, so that no file of the checkout can be meant.
        let folder = Folder::new("release-manifests");
        release.unpack(MANIFESTS, &folder.0);
        let manifests = folder.join(MANIFESTS).join("daemonset");
        let mut kustomizations = vec![manifests.join("base"), manifests.join("uninstall")];
        // There, an own copy of the image is named.
        kustomizations.extend(repository.map(|_| manifests.join("example")));
        let components = fs::read_dir(manifests.join("components")).unwrap();
        for component in components.map(|entry| entry.unwrap().file_name()) {
            let component = component.to_str().unwrap();
            let own = manifests.join(format!("with-{component}"));
            fs::create_dir(&own).unwrap();
            let text = format!("resources: [../base]\ncomponents: [../components/{component}]\n");
            fs::write(own.join("kustomization.yaml"), text).unwrap();
            kustomizations.push(own);
        }
        assert!(kustomizations.len() > 8);
        for kustomization in kustomizations {
            let kubectl = cluster.programs().join("kubectl");
            let mut render = Command::new(kubectl);
            let yaml = output(render.arg("kustomize").arg(&kustomization));
            let found = images(&yaml);
            let placeholder = repository.is_none() && kustomization.ends_with("uninstall");
            let expected = if placeholder {
                expected.replace(name, "registry.example/psi-agent")
            } else {
                expected.clone()
            };
            assert!(!found.is_empty(), "{}", kustomization.display());
            assert!(found.iter().all(|image| *image == expected), "{found:?}");
        }
    }
}

#[test]
#[ignore = "needs the static binary and the plugin: tests/run --cluster builds them"]
fn packs_are_the_same_each_time_and_have_the_files_that_the_document_lists() {
    let [first, second] = ["first", "second"].map(PackedRelease::new);
    let bytes = |release: &PackedRelease| -> BTreeMap<String, Vec<u8>> {
        let read = |file: String| (file.clone(), fs::read(release.folder().join(file)).unwrap());
        release.files().into_iter().map(read).collect()
    };
    assert!(bytes(&first) == bytes(&second));
    let document = fs::read_to_string(Path::new(REPOSITORY).join("docs/release.md")).unwrap();
    for file in first.files() {
        let listed = file.replace(VERSION, "VERSION").replace("amd64", "ARCH");
        assert!(document.contains(&format!("`{listed}`")), "{listed}");
    }
}

#[test]
#[ignore = "needs the static binary and the plugin: tests/run --cluster builds them"]
fn the_manifest_for_krew_has_the_archive_of_the_plugin() {
    let release = PackedRelease::new("krew");
    let text = fs::read_to_string(release.folder().join("psi.yaml")).unwrap();
    let manifest: Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(manifest["spec"]["version"], format!("v{VERSION}"));
    let platform = &manifest["spec"]["platforms"][0];
    let (uri, sum) = (platform["uri"].as_str().unwrap(), platform["sha256"].as_str().unwrap());
    assert!(uri.starts_with(env!("CARGO_PKG_REPOSITORY")), "{uri}");
    let archive = release.folder().join(uri.rsplit('/').next().unwrap());
    assert!(output(Command::new("sha256sum").arg(&archive)).starts_with(sum));
    let listed = output(Command::new("tar").arg("-tf").arg(&archive));
    assert_eq!(listed, format!("{}\nLICENSE\n", platform["bin"].as_str().unwrap()));
}

#[test]
#[ignore = "needs the static binary and the plugin: tests/run --cluster builds them"]
fn the_debian_package_has_the_program_its_unit_and_its_variables() {
    let release = PackedRelease::new("deb");
    let package = release.folder().join(format!("psi-agent_{VERSION}-1_amd64.deb"));
    let said = |flag: &str| output(Command::new("dpkg-deb").arg(flag).arg(&package));
    let files = said("--contents");
    for file in
        ["./usr/bin/psi-agent", "./etc/default/psi-agent", "systemd/system/psi-agent.service"]
    {
        assert!(files.lines().any(|line| line.ends_with(file)), "{file}: {files}");
    }
    let folder = Folder::new("deb");
    output(Command::new("dpkg-deb").args(["--raw-extract"]).arg(&package).arg(&folder.0));
    let control = |file: &str| fs::read_to_string(folder.join("DEBIAN").join(file)).unwrap();
    assert_eq!(control("conffiles").trim(), "/etc/default/psi-agent");
    assert!(control("postinst").contains("psi-agent.service"), "the unit is started");
}

#[test]
#[ignore = "needs the plugin and kubectl: tests/run --cluster builds them"]
fn the_plugin_does_what_the_agents_commands_do() {
    let cluster = Cluster::start("plugin");
    cluster.add_node("node-a");
    let annotate = |value: &str| {
        let keys = [format!("psi-agent.io/score={value}"), format!("psi-agent.io/cpu={value}")];
        let date = "psi-agent.io/observed-at=2026-01-01T00:00:00Z";
        let all = ["annotate", "node", "node-a", &keys[0], &keys[1], date];
        cluster.kubectl(&[&all[..], &["psi-agent.io/basis=psi/10"]].concat(), "");
    };
    annotate("40");
    let kubeconfig = cluster.admin_kubeconfig();
    let run = |arguments: &[&str]| {
        output(Command::new(plugin()).args(arguments).arg("--kubeconfig").arg(&kubeconfig))
    };
    let listed = run(&["nodes"]);
    assert!(listed.contains("node-a   high    40") && listed.contains("(stale)"), "{listed}");
    let cleared = run(&["reap", "--older-than", "15m", "--force"]);
    assert!(cleared.contains("node-a: cleared"), "{cleared}");
    annotate("41");
    assert!(run(&["reap", "--all", "--candidates"]).contains("1 of 1 nodes"));
    assert!(!cluster.get(&["node", "node-a"]).to_string().contains("psi-agent.io"));

    let mut elsewhere = Command::new(plugin());
    elsewhere.args(["nodes", "--context", "nowhere", "--kubeconfig"]).arg(&kubeconfig);
    let refused = elsewhere.output().unwrap();
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && error.contains("nowhere"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    let misspelt = Command::new(plugin()).arg("node").output().unwrap();
    let error = String::from_utf8(misspelt.stderr).unwrap();
    assert_eq!(misspelt.status.code(), Some(64), "as the agent's: {error}");
    assert!(error.contains("'nodes'"), "{error}");
}

#[test]
#[ignore = "needs what tests/actionlint/build makes"]
fn the_workflow_calls_the_script_and_is_well_formed() {
    let folder = Path::new(REPOSITORY).join(".github/workflows");
    let go_mod = include_str!("../../actionlint/go.mod");
    let actionlint = built("actionlint", go_mod, "github.com/rhysd/actionlint").join("actionlint");
    for file in fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
        let output = Command::new(&actionlint).arg(&file).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    let text = fs::read_to_string(folder.join("release.yaml")).unwrap();
    assert!(text.contains("release/build \"${GITHUB_REF_NAME#v}\""), "{text}");
}
