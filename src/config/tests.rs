use clap::Parser;

use super::*;
use crate::contract::Level;
use crate::identity::selection::Selection;
use crate::kernel::cgroup_dir::Resource;
use crate::sample::FamilyGroup;
use crate::serve::authorization::Page;

fn parse(line: &str) -> Result<Command, clap::Error> {
    Command::parse(line.split(' ').map(Into::into)).map(|(command, _)| command)
}

fn run(line: &str) -> RunConfig {
    let Command::Run(config) = parse(line).unwrap() else { panic!("{line}") };
    *config
}

fn once(line: &str) -> OnceConfig {
    let Command::Once(config) = parse(line).unwrap() else { panic!("{line}") };
    config
}

fn check_refused(line: &str, expected: &str) {
    let error = parse(line).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ArgumentConflict);
    assert!(error.to_string().contains(expected), "{line}: {error}");
}

/// The line lacks a flag that another one requires.
fn check_missing(line: &str, flag: &str) {
    let error = parse(line).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MissingRequiredArgument);
    assert!(error.to_string().contains(flag), "{line}: {error}");
}

fn mode(line: &str) -> Publish {
    let config = run(line);
    config.publishing.publish.mode(&config.source)
}

/// The cgroups that `run` exports.
fn selection(line: &str) -> Selection {
    let config = run(line);
    config.source.selection(Some(&config.export))
}

#[test]
fn the_default_scope_depends_on_the_source_of_pods() {
    assert!(selection("psi-agent").everything);
    assert!(selection("psi-agent --pods-file pods.json").vms_only);
    let pods = selection("psi-agent --pods-file pods.json --scope pods --cgroup-levels pod");
    assert!(!pods.vms_only && !pods.everything && pods.pods && !pods.root && !pods.containers);
    check_refused(
        "psi-agent --scope virt-launcher",
        "--scope virt-launcher needs a source of pods",
    );
}

#[test]
fn the_score_is_published_by_default_in_a_cluster_only() {
    assert_eq!(mode("psi-agent"), Publish::DryRun);
    assert_eq!(mode("psi-agent --publish off"), Publish::Off);
    let node = "psi-agent --kubeconfig c --node-name n";
    assert_eq!(mode(node), Publish::On);
    let config = run(&format!("{node} --publish dry-run --label --taint-levels medium,high"));
    assert_eq!(config.publishing.publish.mode(&config.source), Publish::DryRun);
    assert!(config.publishing.outputs.label);
    assert_eq!(config.publishing.outputs.taint_levels, [Level::Medium, Level::High]);
    check_refused("psi-agent --publish on", "--publish on needs a cluster");
    check_refused("psi-agent check --publish on", "--publish on needs a cluster");
}

#[test]
fn a_flag_that_needs_the_api_server_is_refused_with_a_file_of_pods() {
    let pods = "psi-agent --pods-file p --kubeconfig c --node-name n";
    let publish = format!("{pods} --publish on");
    check_refused(&publish, "--publish on needs the API server");
    let auth = format!("{pods} --tls-cert-file c --tls-private-key-file k --auth kubernetes");
    check_refused(&auth, "--auth kubernetes needs the API server");
    assert_eq!(mode(pods), Publish::DryRun);
}

#[test]
fn authentication_needs_a_cluster_and_tls_and_tls_needs_both_files() {
    let half = "psi-agent --tls-cert-file c";
    check_missing(half, "--tls-private-key-file");
    check_missing("psi-agent --tls-private-key-file k", "--tls-cert-file");
    check_missing("psi-agent bridge --tls-cert-file c", "--tls-private-key-file");
    check_missing("psi-agent check --tls-cert-file c", "--tls-private-key-file");
    let tls = format!("{half} --tls-private-key-file k");
    let tokens = format!("{tls} --auth kubernetes");
    check_refused(&tokens, "--auth kubernetes needs a cluster");
    let cluster = "--kubeconfig c --node-name n";
    let clear = format!("psi-agent --auth kubernetes {cluster}");
    check_missing(&clear, "--tls-cert-file");
}

#[test]
fn the_command_line_is_consistent() {
    Command::program().debug_assert();
}

#[test]
fn a_cluster_needs_a_node_name_and_a_node_name_a_cluster() {
    let (cluster, name) = ("psi-agent --kubeconfig c", "psi-agent --node-name n");
    check_refused(cluster, "in a cluster --node-name is required");
    check_refused(name, "--node-name needs a cluster");
    let with_account = |line: &str| Command::parse_from(line.split(" ")).check(true);
    assert!(with_account("psi-agent run").is_err());
    assert_eq!(with_account("psi-agent run --node-name n"), Ok(()));
    let node = run(&format!("{cluster} --node-name n")).source.pods();
    assert_eq!(node, PodSource::Cluster("n".into()));
    assert_eq!(run("psi-agent").source.pods(), PodSource::Standalone);
}

#[test]
fn flags_without_a_command_are_those_of_run() {
    let config = run("psi-agent --listen-address 127.0.0.1:1");
    assert_eq!(config.server.listen.listen_address.port(), 1);
    assert_eq!(run("psi-agent").server.listen.listen_address.port(), 9942);
    let OnceConfig { source, export, .. } =
        once("psi-agent once --scope pods --families pressure,node");
    assert!(!source.selection(Some(&export)).everything);
    assert_eq!(export.families(), [FamilyGroup::Pressure, FamilyGroup::Node]);
    for none in ["none", "pressure --families none"] {
        assert_eq!(once(&format!("psi-agent once --families {none}")).export.families(), []);
    }
    let Command::Bridge(bridge) = parse("psi-agent bridge").unwrap() else { panic!() };
    assert_eq!(bridge.server.listen.listen_address.port(), 9943);
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
        assert_eq!(parse(line).unwrap_err().kind(), ErrorKind::UnknownArgument, "{line}");
    }
}

#[test]
fn without_flags_of_export_cgroups_of_all_levels_are_read() {
    let OnceConfig { source, export, .. } = once("psi-agent once");
    assert_eq!(source.selection(Some(&export)), source.selection(None));
}

/// Flags of `nodes`, `reap`, `plan` and `planner` that have no environment variables: a variable could remove keys or
/// move VMs unnoticed, or change the form that a script reads.
const WITHOUT_VARIABLE: [&str; 12] = [
    "older_than",
    "all",
    "force",
    "candidates",
    "wait_for_agents",
    "output",
    "sort_by",
    "watch",
    "selector",
    "apply",
    "yes",
    "resume",
];

#[test]
fn every_flag_has_a_group_and_an_environment_variable_with_its_name() {
    let program = Command::program();
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
fn values_of_a_closed_set_are_parsed_and_others_refused_with_the_set() {
    let config = run("psi-agent --score-resources cpu,io --page off");
    assert_eq!(config.score.score_resources, [Resource::Cpu, Resource::Io]);
    let (_, log) = Command::parse(["psi-agent", "--log-level", "debug"].map(Into::into)).unwrap();
    assert_eq!(log.unwrap().level, tracing::Level::DEBUG);
    assert_eq!(config.page, Page::Off);
    let defaults = run("psi-agent");
    assert_eq!(defaults.score.score_resources, [Resource::Cpu, Resource::Memory]);
    assert_eq!(defaults.source.cpu_source, CpuSourceFlag::Auto);
    for (flag, values) in [
        ("--score-resources", "cpu, memory, io"),
        ("--taint-levels", "medium, high"),
        ("--log-level", "error, warn, info, debug, trace"),
        ("--page", "loopback, anywhere, off"),
        ("--cpu-source", "auto, run-delay, psi"),
    ] {
        let error = parse(&format!("psi-agent {flag} other")).unwrap_err();
        assert!(error.to_string().contains(&format!("[possible values: {values}]")), "{error}");
    }
}
