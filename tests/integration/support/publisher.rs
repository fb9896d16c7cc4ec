//! The publisher of an agent, as the command line configures it.

use psi_agent::client::cluster::OwnNode;
use psi_agent::config::Command;
use psi_agent::publish::publisher::Publisher;

/// The publisher of `psi-agent run` with these flags on this Node.
pub(crate) fn publisher(node: OwnNode, flags: &str, random: fn() -> f64) -> Publisher {
    let line = format!("psi-agent --kubeconfig unused --node-name {} {flags}", node.name);
    let (command, _) = Command::parse(line.split_whitespace().map(Into::into)).unwrap();
    let Command::Run(config) = command else { panic!("{line}") };
    Publisher::new(&config, Some(node), random)
}
