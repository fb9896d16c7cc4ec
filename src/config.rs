//! The command line and its environment twins, to what the program needs. The only reader of
//! either.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::output::families::FamilyGroup;
use crate::reader::{Groups, Selection};

/// What was typed.
#[derive(Debug, Parser)]
#[command(
    name = "psi-agent",
    version,
    about = "Exports the pressure (PSI) of this node and its cgroups to Prometheus.",
    after_help = "Exit codes: 0 all well; 1 something on this host does not let it run, said in \
                  one line; 64 the command line is wrong.\n\
                  Without a command it runs; every flag can also be set by its environment variable."
)]
pub struct CommandLine {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    flags: Flags,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Serve metrics until stopped (what happens without a command)
    Run,
    /// Read twice, 2 s apart, print the metrics and exit
    Once,
    /// Say whether this host has what the agent needs, and what to do where it does not
    Check,
}

#[derive(Debug, Args)]
struct Flags {
    /// Where to serve /metrics, /livez, /readyz and the page for people
    #[arg(
        long,
        global = true,
        env = "PSI_AGENT_LISTEN_ADDRESS",
        value_name = "ADDRESS:PORT",
        default_value = "127.0.0.1:9942"
    )]
    listen_address: SocketAddr,

    /// The host's /proc
    #[arg(
        long,
        global = true,
        env = "PSI_AGENT_PROC_ROOT",
        value_name = "DIR",
        default_value = "/proc"
    )]
    proc_root: PathBuf,

    /// The top of the cgroup2 tree [default: the mount that /proc/self/mountinfo shows]
    #[arg(long, global = true, env = "PSI_AGENT_CGROUP_ROOT", value_name = "DIR")]
    cgroup_root: Option<PathBuf>,

    /// Which cgroups
    #[arg(long, global = true, env = "PSI_AGENT_SCOPE", value_enum, default_value_t = Scope::All)]
    scope: Scope,

    /// Which levels of the scope `pods`
    #[arg(
        long,
        global = true,
        env = "PSI_AGENT_CGROUP_LEVELS",
        value_enum,
        value_delimiter = ',',
        default_values_t = [CgroupLevel::Root, CgroupLevel::Pod, CgroupLevel::Container]
    )]
    cgroup_levels: Vec<CgroupLevel>,

    /// Which metrics
    #[arg(
        long,
        global = true,
        env = "PSI_AGENT_FAMILIES",
        value_enum,
        value_delimiter = ',',
        default_values_t = FamilyGroup::value_variants().to_vec()
    )]
    families: Vec<FamilyGroup>,

    /// How much to log, to stderr
    #[arg(long, global = true, env = "PSI_AGENT_LOG_LEVEL", value_enum, default_value_t = LogLevel::Info)]
    log_level: LogLevel,

    /// How to log: text on a terminal and JSON otherwise, or always the one
    #[arg(long, global = true, env = "PSI_AGENT_LOG_FORMAT", value_enum, default_value_t = LogFormat::Auto)]
    log_format: LogFormat,
}

/// Which cgroups are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scope {
    /// Every cgroup but systemd's mount units
    All,
    /// The node, pods and their containers
    Pods,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CgroupLevel {
    /// The root cgroup, which is the node
    Root,
    /// Pods
    Pod,
    /// Containers
    Container,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    Auto,
    Text,
    Json,
}

/// How to log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogConfig {
    /// The least severe level that is logged.
    pub level: tracing::Level,
    /// JSON or text; `None` where the terminal decides.
    pub json: Option<bool>,
}

/// What the program needs.
#[derive(Debug, Clone)]
pub struct Config {
    /// What to do.
    pub command: Command,
    /// Where to listen.
    pub listen_address: SocketAddr,
    /// The host's `/proc`.
    pub proc_root: PathBuf,
    /// The top of the cgroup2 tree, where one was named.
    pub cgroup_root: Option<PathBuf>,
    /// Which cgroups.
    pub selection: Selection,
    /// Which metrics.
    pub families: Vec<FamilyGroup>,
    /// How to log.
    pub log: LogConfig,
}

impl Config {
    /// Which groups of files the metrics need.
    #[must_use]
    pub fn groups(&self) -> Groups {
        let has = |group| self.families.contains(&group);
        Groups {
            cpu: has(FamilyGroup::Cpu),
            memory: has(FamilyGroup::Memory),
            io: has(FamilyGroup::Io),
            processes: has(FamilyGroup::Processes),
            // Throttling is only exported where a quota is set.
            spec: has(FamilyGroup::Spec) || has(FamilyGroup::Cpu),
        }
    }
}

impl From<CommandLine> for Config {
    fn from(CommandLine { command, flags }: CommandLine) -> Self {
        let Flags {
            listen_address,
            proc_root,
            cgroup_root,
            scope,
            cgroup_levels,
            families,
            log_level,
            log_format,
        } = flags;
        let level = |level| cgroup_levels.contains(&level);
        let level_filter = match log_level {
            LogLevel::Error => tracing::Level::ERROR,
            LogLevel::Warn => tracing::Level::WARN,
            LogLevel::Info => tracing::Level::INFO,
            LogLevel::Debug => tracing::Level::DEBUG,
            LogLevel::Trace => tracing::Level::TRACE,
        };
        let json = match log_format {
            LogFormat::Auto => None,
            LogFormat::Text => Some(false),
            LogFormat::Json => Some(true),
        };
        Config {
            command: command.unwrap_or(Command::Run),
            listen_address,
            proc_root,
            cgroup_root,
            selection: Selection {
                everything: scope == Scope::All,
                root: level(CgroupLevel::Root),
                pods: level(CgroupLevel::Pod),
                containers: level(CgroupLevel::Container),
            },
            families,
            log: LogConfig { level: level_filter, json },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn config(line: &str) -> Config {
        CommandLine::try_parse_from(line.split(' ')).unwrap().into()
    }

    #[test]
    fn the_command_line_is_consistent() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn flags_stand_before_or_after_the_command() {
        assert!(!config("psi-agent --scope pods once").selection.everything);
        let after = config("psi-agent once --scope pods --families pressure,node");
        assert!(!after.selection.everything);
        assert_eq!(after.command, Command::Once);
        assert_eq!(after.families, [FamilyGroup::Pressure, FamilyGroup::Node]);
        assert_eq!(after.groups(), Groups::default());
    }

    #[test]
    fn every_flag_has_an_environment_variable_of_its_name() {
        for argument in CommandLine::command().get_arguments() {
            let id = argument.get_id().as_str();
            if id == "help" || id == "version" {
                continue;
            }
            let expected = format!("PSI_AGENT_{}", id.to_uppercase());
            assert_eq!(argument.get_env().and_then(|name| name.to_str()), Some(&*expected));
        }
    }
}
