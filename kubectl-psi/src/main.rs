//! `kubectl psi`: the commands of `psi-agent` that need no node, for the machine where kubectl runs.

mod agent_pod;

use std::io::{Write, stderr, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use jiff::Timestamp;
use psi_agent_client::cluster::{ApiClient, block_on};
use psi_agent_client::contract::Prefix;
use psi_agent_client::flags::{ColorFlag, NodesFlags, PlanFlags, ReapFlags, with_variable};
use psi_agent_client::output::WRONG_USAGE;
use psi_agent_client::top::show;
use psi_agent_client::{nodes, plan, reap};

use agent_pod::AgentPod;

#[derive(Debug, Parser)]
#[command(
    name = "kubectl-psi",
    bin_name = "kubectl psi",
    version,
    max_term_width = 100,
    mut_args(with_variable),
    mut_subcommands(|command| command.mut_args(with_variable)),
    about = "Shows how much nodes slow their VMs or containers down, as psi-agent measures it."
)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
    /// Kubeconfig [default: kubectl's]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Cluster")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: the current one]
    #[arg(long, global = true, value_name = "NAME", help_heading = "Cluster")]
    context: Option<String>,
    /// Prefix of keys on Nodes and pods, a DNS subdomain
    #[arg(long, global = true, env, help_heading = "Cluster", default_value_t)]
    prefix: Prefix,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the cluster's nodes by their published scores, with the age of each
    ///
    /// LEVEL: the label of the node, or else the level of its score by the agents' default thresholds.
    /// HEADROOM: busy vCPUs that can be added before the level is medium. CANDIDATE: UID of the pod of the VM
    /// with the most relief. DEMAND, WAITING: CPUs, averaged over 30 min.
    Nodes(NodesFlags),
    /// Show a node and its VMs or containers by contention, live in a terminal
    ///
    /// Reads the node's agent through the API server, as kubectl port-forward does. Press / to filter by
    /// name, ? for the columns and the keys that sort and scroll, and q, Esc or Ctrl-C to quit. If stdout
    /// is not a terminal, top prints one table and exits.
    Top {
        /// Name of the node
        node: String,
        /// Namespace of the agents [default: all namespaces]
        #[arg(short, long, value_name = "NAME")]
        namespace: Option<String>,
        #[command(flatten)]
        color: ColorFlag,
    },
    /// Propose moves of VMs from contended nodes to nodes with headroom
    ///
    /// Reads Nodes, pods, and KubeVirt's VMs and migrations. Creates migrations only with --apply.
    /// GAIN: CPUs' worth of waiting that would end on both nodes together. DEMAND: CPUs that the VM, or
    /// all of the node, would use without waiting, averaged over 30 min, before and after the move.
    Plan(PlanFlags),
    /// Remove stale published scores from Nodes
    Reap(ReapFlags),
}

fn main() -> ExitCode {
    let command_line = match CommandLine::try_parse() {
        Ok(command_line) => command_line,
        Err(error) => {
            let _ = error.print();
            let is_wrong = error.use_stderr();
            return if is_wrong { ExitCode::from(WRONG_USAGE) } else { ExitCode::SUCCESS };
        }
    };
    match block_on(run(command_line)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(stderr(), "kubectl-psi: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "the one place that reads the clock")]
async fn run(command_line: CommandLine) -> anyhow::Result<()> {
    let CommandLine { command, kubeconfig, context, prefix } = command_line;
    let api = ApiClient::connect_as_kubectl(kubeconfig.as_ref(), context).await?;
    let mut out = stdout();
    match command {
        Command::Nodes(flags) => {
            nodes::nodes(&api, &prefix, &flags, Timestamp::now, &mut out).await
        }
        Command::Top { node, namespace, color } => {
            let mut agent = AgentPod { api, node, namespace, connection: None };
            show(color.color, async || agent.next().await).await
        }
        Command::Plan(flags) => plan::plan(&api, &prefix, &flags, Timestamp::now, &mut out).await,
        Command::Reap(flags) => reap::reap(&api, &prefix, &flags, Timestamp::now, &mut out).await,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn environment_variables_begin_with_the_name_of_the_agent() {
        let program = CommandLine::command();
        let of_commands = program.get_subcommands().flat_map(clap::Command::get_opts);
        let variables: Vec<_> =
            of_commands.chain(program.get_opts()).filter_map(|flag| flag.get_env()).collect();
        assert!(variables.len() > 5, "{variables:?}");
        for variable in variables {
            assert!(variable.to_str().unwrap().starts_with("PSI_AGENT_"), "{variable:?}");
        }
    }
}
