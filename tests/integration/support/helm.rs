//! helm, and what it makes of the chart.

use std::path::PathBuf;
use std::process::{Command, Output};

use super::built;
use super::project::path;

/// The value without which the chart renders nothing: the image's name in daemonset/base/image.
pub(crate) const IMAGE: &str = "image.repository=psi-agent.invalid/set-your-registry";
/// What tests/upgrade/pack makes of the repository's history.
const LAST_RELEASE: &str = "tests/upgrade/0.2.0/chart.tgz";
/// How docs/install.md and CHANGELOG.md upgrade.
pub(crate) const REUSE: &str = "--reset-then-reuse-values";

pub(crate) fn program() -> PathBuf {
    built("helm", include_str!("../../kubernetes/1.37/go.mod"), "helm.sh/helm/v3").join("helm")
}

/// Runs `helm VERB psi-agent CHART` in a namespace, with these values. `lint` has no release's name,
/// `uninstall`, `rollback` and `test` no chart.
pub(crate) fn helm(verb: &str, namespace: &str, values: &[&str], more: &[&str]) -> Output {
    helm_with("daemonset/chart", verb, namespace, values, more)
}

fn helm_with(chart: &str, verb: &str, namespace: &str, values: &[&str], more: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.arg(verb);
    if verb != "lint" {
        command.arg("psi-agent");
    }
    if !["uninstall", "rollback", "test"].contains(&verb) {
        command.arg(path(chart));
    }
    command.args(["--namespace", namespace]).args(more);
    for value in values {
        command.args(["--set", value]);
    }
    // Nothing of the user's own configuration.
    command.env("HELM_CONFIG_HOME", "/nonexistent").env("HELM_DATA_HOME", "/nonexistent");
    command.output().expect("helm starts: tests/helm/build makes it")
}

/// The output of a command that succeeds.
pub(crate) fn helm_output(verb: &str, namespace: &str, values: &[&str], more: &[&str]) -> String {
    success(verb, helm(verb, namespace, values, more))
}

/// The same with the chart of the last release.
pub(crate) fn last_release(verb: &str, namespace: &str, values: &[&str], more: &[&str]) -> String {
    success(verb, helm_with(LAST_RELEASE, verb, namespace, values, more))
}

fn success(verb: &str, output: Output) -> String {
    assert!(output.status.success(), "{verb}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
