//! `psi-agent check`: checks the requirements of the agent on this host, and prints a line for each
//! with a remedy where it is not met.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;

use crate::cgroup_path::{Place, PodLevel};
use crate::client::cluster::{OwnNode, block_on};
use crate::client::output::print;
use crate::clock;
use crate::collector::MIN_PRESSURE_INTERVAL;
use crate::config::{CheckConfig, PodSource, Publish, SourceFlags};
use crate::host::{Finding, Host, Problem, fail, warn};
use crate::identity::pod_index::PodIndex;
use crate::kernel::cgroup_dir::{CgroupDir, CgroupRoot, Resource};
use crate::kernel::cgroup_tree::CgroupTree;
use crate::kernel::{ReadError, ReadErrorKind};
use crate::pod_source::{connect, list};
use crate::score::{Absence, Scorer};
use crate::waiting::{CpuSource, Population, Ratio};

/// The resources in the score unless the agent is configured otherwise.
const COUNTED: [Resource; 2] = [Resource::Cpu, Resource::Memory];

/// Findings, each with its subject.
type Findings = Vec<(&'static str, Finding)>;

/// Checks this host and writes the findings. The exit code is 1 when a finding failed, else 0.
pub fn check(config: &CheckConfig, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let findings = check_host(config);
    let text: String = findings.iter().map(lines).collect();
    print(text, out).context("cannot write the findings")?;
    let failed = findings.iter().any(|(_, finding)| is_fatal(finding));
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The lines of a finding about one requirement.
fn lines((about, finding): &(&str, Finding)) -> String {
    // Users can give cgroups any name.
    let printable = |text: &str| text.replace(|one: char| one.is_control(), "?");
    let line = |verdict, text| format!("{verdict:<5} {about:<10} {}\n", printable(text));
    match finding {
        Ok(text) => line("ok", text),
        Err(Problem { is_fatal, text, remedy }) => {
            let verdict = if *is_fatal { "FAIL" } else { "warn" };
            format!("{}{:<16} -> {}\n", line(verdict, text), "", printable(remedy))
        }
    }
}

fn is_fatal(finding: &Finding) -> bool {
    finding.as_ref().is_err_and(|problem| problem.is_fatal)
}

fn check_host(config: &CheckConfig) -> Findings {
    let host = match Host::open(&config.source) {
        Ok(host) => host,
        Err(problem) => return vec![("host", Err(problem))],
    };
    let (of_api_server, listed) = api_server(config);
    let mut pressure = node_pressure(&host);
    let psi_is_on = !is_fatal(&pressure);
    if let (CpuSource::RunDelay, Err(problem)) = (host.cpu_source, &mut pressure) {
        // The CPU score does not need PSI.
        problem.is_fatal = false;
    }
    let kernel = match host.proc.kernel_release() {
        Some(release) => Ok(format!("Linux {release}")),
        None => warn(
            "no release in sys/kernel/osrelease below --proc-root",
            "mount the host's /proc, and set --proc-root to it",
        ),
    };
    let mut findings =
        vec![("kernel", kernel), ("cgroup v2", host.cgroups()), ("pressure", pressure)];
    if !host.node_alone {
        let mut tree = CgroupTree::new(Arc::clone(&host.root), true, 0);
        let errors = tree.follow(clock::now().at);
        findings.push(("cgroups", cgroups(tree.count(), &errors)));
        if psi_is_on {
            findings.push(("cgroup PSI", cgroup_pressure(&tree, &host.root)));
        }
        findings.push(("controls", controllers(&host.root)));
        findings.push(("pods", Ok(pods(&tree))));
        findings.extend(score(config, host, listed.as_ref()));
    }
    findings.extend(of_api_server);
    findings.extend(certificate(config).map(|finding| ("tls", finding)));
    findings
}

/// PSI is checked by reading its files: with PSI disabled, RHEL's kernels still open them, but
/// reading fails.
fn node_pressure(host: &Host) -> Finding {
    let Err(error) = read_all(|resource| host.proc.pressure(resource)) else {
        return Ok("cpu, memory and io are readable".to_owned());
    };
    match error.kind {
        ReadErrorKind::Refused(_) => {
            let root = CgroupDir::open(&host.root, "/", false);
            if root.is_ok_and(|root| read_all(|resource| root.pressure(resource)).is_ok()) {
                warn(format!("{error}; the root cgroup's files are read instead"), REFUSED)
            } else {
                fail(error, REFUSED)
            }
        }
        ReadErrorKind::Vanished(_) | ReadErrorKind::Unsupported(_) => {
            let parameter = host.proc.psi_parameter().unwrap_or("no psi=".into());
            fail(
                format!("off in this kernel ({error}; its command line has {parameter})"),
                "boot with psi=1; if that does not help, the kernel was built without CONFIG_PSI",
            )
        }
        ReadErrorKind::Malformed(_) | ReadErrorKind::Failed(_) => {
            fail(error, "report the content of this file as an issue of psi-agent")
        }
    }
}

const REFUSED: &str = "allow the agent to read /proc/pressure (a security module such as SELinux \
                       denies it to this user)";

fn read_all<T>(mut read: impl FnMut(Resource) -> Result<T, ReadError>) -> Result<(), ReadError> {
    Resource::ALL.into_iter().try_for_each(|resource| read(resource).map(drop))
}

fn cgroups(count: usize, errors: &[ReadError]) -> Finding {
    match errors.first() {
        None => Ok(format!("{count} found")),
        Some(error) => warn(
            format!("{count} found; {} errors, first: {error}", errors.len()),
            "run as a user with read access to the cgroups",
        ),
    }
}

fn cgroup_pressure(tree: &CgroupTree, root: &CgroupRoot) -> Finding {
    let error = |dir| Some((dir, CgroupDir::pressure(dir, Resource::Cpu).err()?));
    let mut errors: Vec<(&CgroupDir, ReadError)> = tree.dirs().filter_map(error).collect();
    // The files of a cgroup that is alive vanish when PSI is off for it.
    errors.retain(|(dir, error)| !error.is_vanished() || dir.is_alive());
    let Some((dir, error)) = errors.first() else { return Ok("on for every cgroup".to_owned()) };
    let is_off = error.is_vanished();
    let alike = errors.iter().filter(|(_, error)| error.is_vanished() == is_off).count();
    let count = tree.count();
    if !is_off {
        return warn(
            format!("{alike} of {count} are not readable, first: {error}"),
            "run as a user with read access to the cgroups",
        );
    }
    let first = &dir.cgroup.path;
    let file = root.full_path(first).join("cgroup.pressure");
    warn(
        format!("off for {alike} of {count} cgroups, such as {first}"),
        format!("echo 1 > '{}'", file.display().to_string().replace('\'', r"'\''")),
    )
}

fn controllers(root: &CgroupRoot) -> Finding {
    let mut off = vec!["cpu", "memory", "io", "pids"];
    off.retain(|name| !root.controllers.iter().flatten().any(|on| on == name));
    if off.is_empty() {
        Ok("cpu, memory, io and pids are on v2".to_owned())
    } else {
        warn(
            format!("not on v2: {}; what their limits delay counts as contention", off.join(", ")),
            "boot with systemd.unified_cgroup_hierarchy=1",
        )
    }
}

fn pods(tree: &CgroupTree) -> String {
    let (mut pods, mut containers) = (0, 0);
    for dir in tree.dirs() {
        if let Place::Pod(pod) = &dir.cgroup.place {
            pods += usize::from(pod.level == PodLevel::Pod);
            containers += usize::from(matches!(pod.level, PodLevel::Container(_)));
        }
    }
    format!("{pods} pods and {containers} containers found by path")
}

/// Scores the node once, as the agent does. Reports what is scored, the source of CPU wait time, and
/// files that are not readable.
fn score(config: &CheckConfig, host: Host, pods: Option<&PodIndex>) -> Findings {
    let mut source = host.cpu_wait(&config.source);
    let mut collector = host.into_collector(&config.source, None);
    collector.tick(pods);
    std::thread::sleep(MIN_PRESSURE_INTERVAL);
    let tick = collector.tick(pods);
    let score = Scorer::of_one_window(COUNTED.to_vec(), &tick);
    let population = score.population.map_or("containers", Population::plural);
    let members = format!("{} {population}", score.containers.len());
    let hidden = tick.scored.as_ref().map_or(0, |scored| scored.hidden_threads);
    if hidden > 0 {
        match &mut source {
            Err(problem) => problem.is_fatal = true,
            Ok(_) => {
                source = fail(
                    format!(
                        "run delay is not readable, so there is no CPU score: --proc-root does not \
                         show all threads of {hidden} of {members}"
                    ),
                    "set --proc-root to the host's /proc, as daemonset/base does; or choose \
                     --cpu-source=psi",
                );
            }
        }
    }
    let scored = match score.missing(&COUNTED) {
        None => scored(&members, score.score.map_or(0.0, Ratio::get), config.max_score),
        Some(missing) => Err(Problem {
            is_fatal: config.max_score.is_some()
                || pods.is_some() && score.absence.cpu == Some(Absence::WorkloadsUnknown),
            text: format!("{members}; no score: {missing}"),
            remedy: missing.remedy().to_string(),
        }),
    };
    let files = tick.report.errors.first().map(|error| {
        let finding = warn(
            format!("{error}; {} errors in all", tick.report.errors.len()),
            "run as a user who may read it; if it is malformed, report its content as an issue of psi-agent",
        );
        ("files", finding)
    });
    files.into_iter().chain([("scored", scored), ("cpu source", source)]).collect()
}

/// The score of this moment, which fails above `most` points.
fn scored(members: &str, score: f64, most: Option<u8>) -> Finding {
    let score = (score * 100.0).round();
    match most {
        Some(most) if score > f64::from(most) => fail(
            format!("{members}, score {score}, above {most}"),
            "find in `psi-agent top` what waits",
        ),
        _ => Ok(format!("{members}, score {score}")),
    }
}

const NO_ACCESS: &str =
    "give the agent access to the API server, with the rights to list and watch pods";

/// Checks access to the pods and to the agent's Node. No findings if the agent runs stand-alone. Returns
/// the pods as well.
fn api_server(config: &CheckConfig) -> (Findings, Option<PodIndex>) {
    let source = &config.source;
    // Until they are listed, no workload is known, as for the agent.
    let mut pods = (source.pods() != PodSource::Standalone).then(PodIndex::default);
    let findings = block_on(async {
        let node = connect(source).await?;
        let mut findings = Findings::new();
        if source.pods() != PodSource::Standalone {
            let names = pod_names(source, node.as_ref()).await;
            let names = names.map(|listed| {
                let count = pods.insert(listed).count();
                format!("{count} pods of this node listed")
            });
            findings.push(("names", names));
        }
        if let (Some(node), Publish::On) = (&node, config.publish.mode(source)) {
            findings.push(("node", own_node(node).await));
            findings.extend(restriction(node).await.map(|finding| ("admission", finding)));
        }
        anyhow::Ok(findings)
    });
    // As for the agent, which does not start then.
    let failed = |error| vec![("names", fail(format!("{error:#}"), NO_ACCESS))];
    (findings.unwrap_or_else(failed), pods)
}

/// Checks the list of pods, from which series get their labels.
async fn pod_names(source: &SourceFlags, node: Option<&OwnNode>) -> Finding<PodIndex> {
    match list(source, node).await {
        Ok(pods) => Ok(pods.unwrap_or_default()),
        Err(error) if node.is_none() => {
            fail(format!("{error:#}"), "write the file with `kubectl get pods -o json`")
        }
        Err(error) => warn(format!("{error:#}"), NO_ACCESS),
    }
}

/// Checks access to the agent's own Node.
async fn own_node(node: &OwnNode) -> Finding {
    match node.get().await {
        Ok(keys) => Ok(format!("{} is readable", keys.metadata.name)),
        Err(error) => warn(
            error,
            "apply the agent's manifests and set --node-name to this node's name; or do not publish, with \
             --publish=off",
        ),
    }
}

/// Checks whether admission policies restrict what the agent's account may write. A Node that
/// cannot be patched is reported by [`own_node`].
async fn restriction(node: &OwnNode) -> Option<Finding> {
    let allowed = node.foreign_write().await.ok()?;
    let denied = "writes outside the agent's keys of its own Node are denied";
    let remedy = "apply daemonset/base/admission.yaml, with the name of this agent's account";
    Some(allowed.map_or_else(|| Ok(denied.to_owned()), |allowed| warn(allowed, remedy)))
}

/// Checks the TLS certificate. An agent with a certificate that it cannot use does not start.
fn certificate(config: &CheckConfig) -> Option<Finding> {
    let files = config.certificate.as_ref()?;
    let path = files.tls_cert_file.display().to_string();
    Some(match files.read() {
        Ok(_) => Ok(format!("{path} matches its key")),
        Err(error) => fail(
            error,
            "provide certificate and key, or omit --tls-cert-file and --tls-private-key-file",
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_fails_above_the_limit_only() {
        assert_eq!(scored("3 VMs", 0.451, None), Ok("3 VMs, score 45".into()));
        assert_eq!(scored("3 VMs", 0.3, Some(30)), Ok("3 VMs, score 30".into()));
        let finding = scored("3 VMs", 0.31, Some(30));
        let text = finding.as_ref().unwrap_err().text.as_str();
        assert_eq!((text, is_fatal(&finding)), ("3 VMs, score 31, above 30", true));
    }
}
