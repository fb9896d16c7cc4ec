use clap::error::ErrorKind;

use super::*;
use crate::client::cluster::Cluster;
use crate::contract::Level;
use crate::serve::authorization::{AccessRules, Page};

fn config(line: &str) -> Config {
    checked(line).unwrap()
}

fn checked(line: &str) -> Result<Config, ConfigError> {
    parsed(line).unwrap().try_into()
}

fn parsed(line: &str) -> Result<CommandLine, clap::Error> {
    CommandLine::parse_arguments(line.split(' ').map(Into::into))
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
    // `check` reports what is missing.
    assert_eq!(checked("psi-agent check --publish on").unwrap().publish, Publish::On);
}

#[test]
fn a_flag_that_needs_the_api_server_is_refused_with_a_file_of_pods() {
    let pods = "psi-agent --pods-file p --kubeconfig c --node-name n";
    let refused = |flag| Err(ConfigError::WithPodsFile(flag));
    assert_eq!(checked(&format!("{pods} --publish on")).map(drop), refused("--publish on"));
    let tls = "--tls-cert-file c --tls-private-key-file k";
    let auth = checked(&format!("{pods} {tls} --auth kubernetes"));
    assert_eq!(auth.map(drop), refused("--auth kubernetes"));
    assert_eq!(config(pods).publish, Publish::DryRun);
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
fn flags_without_a_command_are_those_of_run() {
    let run = config("psi-agent --listen-address 127.0.0.1:1");
    assert!(matches!(run.command, Command::Run(_)));
    assert_eq!(run.listen_address.port(), 1);
    assert!(matches!(config("psi-agent").command, Command::Run(_)));
    let once = config("psi-agent once --scope pods --families pressure,node");
    assert!(matches!(once.command, Command::Once(_)));
    assert!(!once.selection.everything);
    assert_eq!(once.families, [FamilyGroup::Pressure, FamilyGroup::Node]);
    assert_eq!(once.groups(), Groups::default());
    assert_eq!(config("psi-agent bridge").listen_address.port(), 9943);
}

#[test]
fn a_command_has_only_the_flags_that_it_uses() {
    for line in [
        "psi-agent top --families pressure",
        "psi-agent once --listen-address 127.0.0.1:1",
        "psi-agent check --levels 10,30",
        "psi-agent nodes --scope all",
        "psi-agent reap --all --node-name n",
        "psi-agent bridge --auth kubernetes",
        "psi-agent run --stale-after 10m",
        "psi-agent completions bash --log-level debug",
    ] {
        assert_eq!(parsed(line).unwrap_err().kind(), ErrorKind::UnknownArgument, "{line}");
    }
}

#[test]
fn defaults_of_flags_are_those_of_commands_without_them() {
    let (run, top) = (config("psi-agent run"), config("psi-agent top"));
    assert_eq!(run.families, top.families);
    assert_eq!(run.selection, top.selection);
    assert_eq!(run.counted, top.counted);
    let check = config("psi-agent check");
    assert_eq!((check.heartbeat_interval, check.prefix), (run.heartbeat_interval, run.prefix));
    assert_eq!((check.publish, check.access), (run.publish, run.access));
    assert_eq!(check.log, run.log);
    assert_eq!(config("psi-agent man").log, run.log);
}

/// Flags of `reap` that have no environment variables: a variable could remove keys unnoticed.
const WITHOUT_VARIABLE: [&str; 4] = ["older_than", "all", "force", "candidates"];

#[test]
fn every_flag_has_a_group_and_an_environment_variable_with_its_name() {
    let program = CommandLine::command();
    let mut count = 0;
    for argument in program.get_subcommands().flat_map(clap::Command::get_opts) {
        let id = argument.get_id().as_str();
        let expected = format!("PSI_AGENT_{}", id.to_uppercase());
        let expected = (!WITHOUT_VARIABLE.contains(&id)).then_some(&*expected);
        assert_eq!(argument.get_env().and_then(|name| name.to_str()), expected);
        assert!(argument.get_help_heading().is_some(), "{id}");
        count += 1;
    }
    assert!(count > 60, "{count}");
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
        let error = parsed(&format!("psi-agent {flag} other")).unwrap_err();
        assert!(error.to_string().contains(&format!("[possible values: {values}]")), "{error}");
    }
}
