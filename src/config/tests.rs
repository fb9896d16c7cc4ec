use clap::CommandFactory;

use super::*;
use crate::cluster::Cluster;
use crate::contract::Level;
use crate::serve::authorization::{AccessRules, Page};

fn config(line: &str) -> Config {
    checked(line).unwrap()
}

fn checked(line: &str) -> Result<Config, ConfigError> {
    CommandLine::try_parse_from(line.split(' ')).unwrap().try_into()
}

fn error(line: &str) -> ConfigError {
    checked(line).unwrap_err()
}

#[test]
fn the_default_scope_depends_on_the_source_of_pods() {
    assert!(config("psi-agent").selection.everything);
    assert!(config("psi-agent --pods-file pods.json").selection.vms_only);
    assert!(!config("psi-agent --pods-file pods.json --scope pods").selection.vms_only);
    assert_eq!(error("psi-agent --scope virt-launcher"), ConfigError::ScopeWithoutPods);
}

#[test]
fn the_score_is_published_by_default_in_a_cluster_only() {
    assert_eq!(config("psi-agent").publish, Publish::DryRun);
    assert_eq!(config("psi-agent --publish off").publish, Publish::Off);
    let node = "psi-agent --kubeconfig c --node-name n";
    assert_eq!(config(node).publish, Publish::On);
    let line = format!("{node} --publish dry-run --label --taint-levels medium,high");
    let config = config(&line);
    assert_eq!(config.publish, Publish::DryRun);
    assert!(config.outputs.label);
    assert_eq!(config.outputs.taints, [Level::Medium, Level::High].into());
    assert_eq!(error("psi-agent --publish on"), ConfigError::PublishWithoutCluster);
}

#[test]
fn authentication_needs_a_cluster_and_tls_and_tls_needs_both_files() {
    let half = "psi-agent --tls-cert-file c";
    assert_eq!(error(half), ConfigError::HalfACertificate);
    assert_eq!(error("psi-agent --tls-private-key-file k"), ConfigError::HalfACertificate);
    let tls = format!("{half} --tls-private-key-file k");
    let tokens = format!("{tls} --auth kubernetes");
    assert_eq!(error(&tokens), ConfigError::AuthWithoutCluster);
    let cluster = "--kubeconfig c --node-name n";
    let clear = format!("psi-agent --auth kubernetes {cluster}");
    assert_eq!(error(&clear), ConfigError::AuthWithoutTls);

    let rules = config(&format!("{tokens} {cluster} --page anywhere")).access.rules();
    assert_eq!(rules, AccessRules { tls: true, tokens: true, page: Page::Anywhere });
    assert_eq!(config(&tls).access.rules(), AccessRules { tls: true, ..AccessRules::default() });
    assert_eq!(config("psi-agent").access.rules(), AccessRules::default());
    // In the agent's pod, `psi-agent top` has the same environment variables, and must start.
    assert_eq!(config("psi-agent top --auth kubernetes").access.auth, Auth::Kubernetes);
}

#[test]
fn the_command_line_is_consistent() {
    CommandLine::command().debug_assert();
}

#[test]
fn a_cluster_needs_a_node_name_and_a_node_name_a_cluster() {
    let source = |kubeconfig: Option<&str>, node: Option<&str>, in_cluster| {
        PodSource::new(None, kubeconfig.map(Into::into), node.map(Into::into), in_cluster)
    };
    assert_eq!(source(None, None, true), Err(ConfigError::ClusterWithoutNode));
    assert_eq!(source(Some("c"), None, false), Err(ConfigError::ClusterWithoutNode));
    assert_eq!(source(None, Some("n"), false), Err(ConfigError::NodeWithoutCluster));
    let cluster = |kubeconfig| Cluster { kubeconfig, node_name: "n".into() };
    assert_eq!(source(None, Some("n"), true), Ok(PodSource::Cluster(cluster(None))));
    let outside = PodSource::Cluster(cluster(Some("c".into())));
    assert_eq!(source(Some("c"), Some("n"), true), Ok(outside));
    assert_eq!(source(None, None, false), Ok(PodSource::Standalone));
}

#[test]
fn flags_are_accepted_before_and_after_the_command() {
    assert!(!config("psi-agent --scope pods once").selection.everything);
    let after = config("psi-agent once --scope pods --families pressure,node");
    assert!(!after.selection.everything);
    assert_eq!(after.command, Command::Once);
    assert_eq!(after.families, [FamilyGroup::Pressure, FamilyGroup::Node]);
    assert_eq!(after.groups(), Groups::default());
}

#[test]
fn every_flag_has_an_environment_variable_with_its_name() {
    for argument in CommandLine::command().get_arguments() {
        let id = argument.get_id().as_str();
        if id == "help" || id == "version" {
            continue;
        }
        let expected = format!("PSI_AGENT_{}", id.to_uppercase());
        assert_eq!(argument.get_env().and_then(|name| name.to_str()), Some(&*expected));
    }
}

#[test]
fn the_source_of_cpu_wait_is_chosen_automatically_by_default() {
    for (line, expected) in [
        ("psi-agent", None),
        ("psi-agent --cpu-source auto", None),
        ("psi-agent --cpu-source run-delay", Some(CpuSource::RunDelay)),
        ("psi-agent --cpu-source psi", Some(CpuSource::Psi)),
    ] {
        assert_eq!(config(line).cpu_source, expected, "{line}");
    }
}

#[test]
fn values_of_a_closed_set_are_parsed_and_others_refused_with_the_set() {
    let typed = config("psi-agent --score-resources cpu,io --log-level debug --page off");
    assert_eq!(typed.counted, [Resource::Cpu, Resource::Io]);
    assert_eq!(config("psi-agent").counted, [Resource::Cpu, Resource::Memory]);
    assert_eq!(typed.log.level, tracing::Level::DEBUG);
    assert_eq!(typed.access.page, Page::Off);
    for (flag, values) in [
        ("--score-resources", "cpu, memory, io"),
        ("--taint-levels", "medium, high"),
        ("--log-level", "error, warn, info, debug, trace"),
        ("--page", "loopback, anywhere, off"),
    ] {
        let error = CommandLine::try_parse_from(["psi-agent", flag, "other"]).unwrap_err();
        assert!(error.to_string().contains(&format!("[possible values: {values}]")), "{error}");
    }
}
