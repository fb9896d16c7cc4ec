//! OpenShift's descheduler operator with the score: its resource definition accepts the snippet, and its
//! own rules are compared with the project's.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::cluster::Cluster;
use crate::support::folder::Folder;
use crate::support::prometheus::{both_promtools, promtool};
use crate::support::{built, project, snippet};

const SNIPPET: &str = "openshift-descheduler.yaml";

/// A file that `tests/openshift/build` copied from the operator's module.
fn of_operator(file: &str) -> PathBuf {
    let module = include_str!("../../openshift/go.mod");
    built("openshift", module, "github.com/openshift/api").join("descheduler-operator").join(file)
}

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

/// The snippet's query.
fn query() -> String {
    let profile = &yaml(&snippet(SNIPPET))["spec"]["profileCustomizations"];
    let profile = profile["devActualUtilizationProfile"].as_str().unwrap();
    profile.strip_prefix("query:").unwrap().to_owned()
}

#[test]
#[ignore = "needs promtool (Debian's package prometheus, and tests/prometheus/build), and OpenShift's \
            rules (tests/openshift/build)"]
fn a_pod_at_its_own_limit_gets_its_node_two_taints_by_the_operators_query_and_none_by_ours() {
    let rule = yaml(&fs::read_to_string(of_operator("prometheusrule.yaml")).unwrap());
    let rules = json!({ "groups": rule["spec"]["groups"] }).to_string();
    let folder = Folder::new("soft-tainter");
    folder.write("operators-rules.yaml", &rules);
    let ours = project::path("daemonset/prometheus/rules.yaml");
    let files = format!("[operators-rules.yaml, {}]", ours.display());
    let test = project::text("tests/openshift/soft_tainter.yaml");
    let test = test.replace("[OPERATORS_RULES, OUR_RULES]", &files).replace("QUERY", &query());
    folder.write("test.yaml", &test);
    for program in both_promtools() {
        promtool(&program, &["test", "rules", &folder.path("test.yaml")]);
    }
}

#[test]
#[ignore = "needs etcd, a control plane (tests/kubernetes/build), and OpenShift's resource definitions \
            (tests/openshift/build)"]
fn the_operators_own_definition_accepts_the_snippet() {
    let cluster = Cluster::start("openshift-descheduler");
    let definition = of_operator("kube-descheduler-operator.crd.yaml");
    cluster.kubectl(&["apply", "--server-side", "-f", definition.to_str().unwrap()], "");
    let established = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"];
    cluster.kubectl(&established, "");
    let namespace = "openshift-kube-descheduler-operator";
    cluster.kubectl(&["create", "namespace", namespace], "");
    let apply = ["apply", "--validate=strict", "-f", "-"];
    cluster.kubectl(&apply, &snippet(SNIPPET));
    let kept = cluster.get(&["kubedescheduler", "cluster", "-n", namespace]);
    let wanted = yaml(&snippet(SNIPPET));
    for (field, value) in wanted["spec"].as_object().unwrap() {
        assert_eq!(&kept["spec"][field], value, "{field}");
    }
    // The check above is strict: an unknown field is rejected.
    let misspelt = snippet(SNIPPET).replace("devDeviationThresholds", "deviationThresholds");
    let folder = Folder::new("misspelt");
    folder.write("misspelt.yaml", &misspelt);
    let apply = ["apply", "--validate=strict", "-f", &folder.path("misspelt.yaml")];
    let refused = cluster.kubectl_as(&cluster.admin_kubeconfig(), &apply);
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(
        error.contains("unknown field \"spec.profileCustomizations.deviationThresholds\""),
        "{error}"
    );
}
