//! `psi-agent check`: what the agent needs of this host, one line each, and what to do about it.

use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;

use crate::cgroup_path::{Place, PodLevel};
use crate::cluster::{ClusterError, OwnNode, event_loop};
use crate::collector::{Collector, Groups, Handles, Selection};
use crate::config::{Config, PodSource, Publish};
use crate::doors::certificate::Certificate;
use crate::host::Host;
use crate::kernel::cgroup_dir::{CgroupDir, CgroupRoot, Resource};
use crate::kernel::cgroup_tree::{CgroupTree, Extent};
use crate::kernel::proc_root::ProcRoot;
use crate::kernel::{ReadBuffer, ReadError, ReadErrorKind};
use crate::pod_source::{connect, list};
use crate::sample::CpuSource;
use crate::sampler::moment_now;

/// How a finding is to be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// As it should be.
    Ok,
    /// The agent runs, with less than it could have.
    Warn,
    /// The agent has nothing to export.
    Fail,
}

/// One line of the answer.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    verdict: Verdict,
    about: &'static str,
    text: String,
    remedy: Option<String>,
}

impl Finding {
    fn ok(about: &'static str, text: impl Into<String>) -> Self {
        Self { verdict: Verdict::Ok, about, text: text.into(), remedy: None }
    }

    fn new(
        verdict: Verdict,
        about: &'static str,
        text: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { verdict, about, text: text.into(), remedy: Some(remedy.into()) }
    }
}

/// Looks, and writes what it found. Exit code 0: the agent can run; 1: it has nothing to export.
///
/// # Errors
/// When `out` cannot be written.
pub fn check(config: &Config, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let findings = look(config);
    for finding in &findings {
        match write_finding(finding, out) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => break,
            written => written.context("cannot write the findings")?,
        }
    }
    let failed = findings.iter().any(|finding| finding.verdict == Verdict::Fail);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn write_finding(finding: &Finding, out: &mut impl Write) -> std::io::Result<()> {
    let verdict = match finding.verdict {
        Verdict::Ok => "ok",
        Verdict::Warn => "warn",
        Verdict::Fail => "FAIL",
    };
    let Finding { about, text, .. } = finding;
    writeln!(out, "{verdict:<5} {about:<10} {text}")?;
    if let Some(remedy) = &finding.remedy {
        writeln!(out, "{:<16} -> {remedy}", "")?;
    }
    Ok(())
}

fn look(config: &Config) -> Vec<Finding> {
    let host = match Host::open(config) {
        Ok(host) => host,
        Err(error) => {
            let error = error.to_string();
            let (text, remedy) = error.rsplit_once(": ").unwrap_or((&error, ""));
            return vec![Finding::new(Verdict::Fail, "host", text, remedy)];
        }
    };
    let mut buffer = ReadBuffer::default();
    let mut findings = vec![kernel(&host.proc, &mut buffer), cgroup_root(&host)];
    let mut pressure = node_pressure(&host, &mut buffer);
    let psi_is_on = pressure.verdict != Verdict::Fail;
    let by_threads = config.cpu_source == CpuSource::RunDelay;
    if by_threads && !psi_is_on {
        // CPU is scored without it.
        pressure.verdict = Verdict::Warn;
    }
    findings.push(pressure);

    if !host.node_alone {
        let mut tree = CgroupTree::new(host.root, Extent::Everything, 0);
        tree.follow(moment_now().at);
        findings.push(cgroups(&mut tree));
        if psi_is_on {
            findings.push(cgroup_pressure(&tree, &mut buffer));
        }
        findings.push(controllers(tree.root(), &mut buffer));
        findings.push(pods(&tree));
        if by_threads {
            findings.push(threads(host.proc, Arc::clone(tree.root())));
        }
    }
    findings.extend(api_server(config));
    findings.extend(certificate(config));
    findings
}

fn kernel(proc: &ProcRoot, buffer: &mut ReadBuffer) -> Finding {
    match proc.kernel_release(buffer) {
        Some(release) => Finding::ok("kernel", format!("Linux {release}")),
        None => Finding::new(
            Verdict::Warn,
            "kernel",
            "its release is not told",
            "mount the host's /proc, or name it with --proc-root",
        ),
    }
}

fn cgroup_root(host: &Host) -> Finding {
    let path = host.root.path().display();
    if host.node_alone {
        return Finding::new(
            Verdict::Fail,
            "cgroup v2",
            format!("{path} is no cgroup v2: the agent would run, and publish no score"),
            "boot with systemd.unified_cgroup_hierarchy=1; in a container, mount the host's \
             /sys/fs/cgroup and name it with --cgroup-root",
        );
    }
    if !host.root.is_cgroup2() {
        return Finding::new(
            Verdict::Warn,
            "cgroup v2",
            format!("{path} is no cgroupfs: these are the files of a replay"),
            "leave --cgroup-root out to read this host's own cgroups",
        );
    }
    if host.root.is_namespaced() {
        return Finding::new(
            Verdict::Warn,
            "cgroup v2",
            format!("{path} shows only a part of the host's tree"),
            "in a container, mount the host's /sys/fs/cgroup and name it with --cgroup-root",
        );
    }
    let beside = host.mount.as_ref().is_some_and(|mount| mount.hybrid);
    let beside = if beside { ", beside cgroup v1" } else { "" };
    Finding::ok("cgroup v2", format!("{path}{beside}"))
}

/// PSI is proven by reading: RHEL's kernels open the files and refuse the reading.
fn node_pressure(host: &Host, buffer: &mut ReadBuffer) -> Finding {
    let about = "pressure";
    let error = match read_all(|resource| host.proc.pressure(resource, buffer)) {
        Ok(()) => return Finding::ok(about, "cpu, memory and io are told"),
        Err(error) => error,
    };
    match error.kind {
        ReadErrorKind::Refused(_) => {
            let read = CgroupDir::open(&host.root, "/", false)
                .and_then(|dir| read_all(|resource| dir.pressure(resource, buffer)));
            match read {
                Ok(()) => Finding::new(
                    Verdict::Warn,
                    about,
                    format!("{error}; the root cgroup's files take its place"),
                    REFUSED,
                ),
                Err(_) => Finding::new(Verdict::Fail, about, error.to_string(), REFUSED),
            }
        }
        ReadErrorKind::Vanished(_) | ReadErrorKind::Unsupported(_) => {
            let parameter = host.proc.boot_parameter("psi", buffer);
            let parameter = parameter.map_or("no psi=".into(), |value| format!("psi={value}"));
            Finding::new(
                Verdict::Fail,
                about,
                format!("off in this kernel ({error}; its command line has {parameter})"),
                "boot with psi=1; if that changes nothing the kernel was built without CONFIG_PSI",
            )
        }
        ReadErrorKind::Malformed(_) | ReadErrorKind::Failed(_) => Finding::new(
            Verdict::Fail,
            about,
            error.to_string(),
            "report this kernel's file: it is not what the kernel documents",
        ),
    }
}

const REFUSED: &str = "let the agent read /proc/pressure (a security module such as SELinux \
                       keeps it from this user)";

fn read_all<T>(mut read: impl FnMut(Resource) -> Result<T, ReadError>) -> Result<(), ReadError> {
    Resource::ALL.into_iter().try_for_each(|resource| read(resource).map(drop))
}

fn cgroups(tree: &mut CgroupTree) -> Finding {
    let health = tree.health();
    let count = tree.len();
    let errors = tree.take_errors();
    match errors.first() {
        None => Finding::ok("cgroups", format!("{count} found, {} watched", health.watches)),
        Some(error) => Finding::new(
            Verdict::Warn,
            "cgroups",
            format!("{count} found; {} could not be followed, such as {error}", errors.len()),
            "run as a user who may read the cgroup tree; raise fs.inotify.max_user_watches",
        ),
    }
}

fn cgroup_pressure(tree: &CgroupTree, buffer: &mut ReadBuffer) -> Finding {
    let mut off = Vec::new();
    let mut wrong = Vec::new();
    for node in tree.nodes() {
        match node.dir.pressure(Resource::Cpu, buffer) {
            Ok(_) => {}
            Err(ReadError { kind: ReadErrorKind::Vanished(_), .. }) => {
                if node.dir.is_alive() {
                    off.push(&*node.cgroup.path);
                }
            }
            Err(error) => wrong.push(error),
        }
    }
    if let Some(error) = wrong.first() {
        return Finding::new(
            Verdict::Warn,
            "cgroup PSI",
            format!("{} of {} do not read, such as {error}", wrong.len(), tree.len()),
            "run as a user who may read the cgroup tree",
        );
    }
    match off.first() {
        None => Finding::ok("cgroup PSI", "on for every cgroup"),
        Some(first) => {
            let file = tree.root().full_path(first).join("cgroup.pressure");
            Finding::new(
                Verdict::Warn,
                "cgroup PSI",
                format!("off for {} of {} cgroups, such as {first}", off.len(), tree.len()),
                format!("echo 1 > {}", file.display()),
            )
        }
    }
}

fn controllers(root: &Arc<CgroupRoot>, buffer: &mut ReadBuffer) -> Finding {
    let list = CgroupDir::open(root, "/", false).and_then(|dir| {
        dir.read(c"cgroup.controllers", buffer, |text| {
            Ok(String::from_utf8_lossy(text).trim().to_owned())
        })
    });
    let list = list.ok().flatten().unwrap_or_default();
    let on: Vec<&str> = list.split_whitespace().collect();
    let off: Vec<&str> =
        ["cpu", "memory", "io", "pids"].into_iter().filter(|name| !on.contains(name)).collect();
    if off.is_empty() {
        Finding::ok("controls", "cpu, memory, io and pids are on v2")
    } else {
        Finding::new(
            Verdict::Warn,
            "controls",
            format!("not on v2: {}; their usage and limits are not exported", off.join(", ")),
            "boot with systemd.unified_cgroup_hierarchy=1; pressure does not need them",
        )
    }
}

fn pods(tree: &CgroupTree) -> Finding {
    let (mut pods, mut containers) = (0, 0);
    for node in tree.nodes() {
        if let Place::Pod(pod) = &node.cgroup.place {
            pods += usize::from(pod.level == PodLevel::Pod);
            containers += usize::from(matches!(pod.level, PodLevel::Container(_)));
        }
    }
    Finding::ok("pods", format!("{pods} pods and {containers} containers by their paths"))
}

/// Whether the threads of containers can be read, by a tick of the agent.
fn threads(proc: ProcRoot, root: Arc<CgroupRoot>) -> Finding {
    let about = "run delay";
    let handles = Handles { cgroups: 0, processes: usize::MAX };
    let (selection, groups) = (Selection::NONE, Groups::default());
    let mut collector = Collector::new(proc, root, selection, groups, CpuSource::RunDelay, handles);
    let tick = collector.tick(moment_now(), None);
    let containers = tick.containers.unwrap_or_default();
    let count = containers.len();
    let text = match (tick.report.errors.first(), tick.hidden_containers) {
        (Some(error), _) => error.to_string(),
        (None, 0) => {
            let threads: usize = containers.iter().flat_map(|one| &one.threads).map(Vec::len).sum();
            return Finding::ok(
                about,
                format!("{threads} threads of {count} containers are readable"),
            );
        }
        (None, hidden) => {
            format!("the processes of {hidden} of {count} containers are not visible")
        }
    };
    Finding::new(
        Verdict::Fail,
        about,
        text,
        "name the host's own /proc with --proc-root, mounted without hidepid; in a pod, mount it as \
         daemonset/base does",
    )
}

/// The pods and the Node that the agent writes on; none of both where it runs stand-alone.
fn api_server(config: &Config) -> Vec<Finding> {
    let findings = event_loop().map(|event_loop| {
        event_loop.block_on(async {
            let node = connect(&config.pods).await;
            let names = pod_names(&config.pods, &node).await;
            [names, own_node(config, &node).await]
        })
    });
    match findings {
        Ok(findings) => findings.into_iter().flatten().collect(),
        Err(error) => vec![Finding::new(Verdict::Warn, "names", error.to_string(), "try again")],
    }
}

type Connected = Result<Option<OwnNode>, ClusterError>;

/// The source of pods' names.
async fn pod_names(source: &PodSource, node: &Connected) -> Option<Finding> {
    let remedy = match source {
        PodSource::Nobody => return None,
        PodSource::File(_) => "write the file as `kubectl get pods -o json` does",
        PodSource::Cluster(_) => {
            "let the agent reach the API server, and its account list and watch pods"
        }
    };
    let pods = match node {
        Ok(node) => list(source, node.as_ref()).await.map_err(|error| format!("{error:#}")),
        Err(error) => Err(error.to_string()),
    };
    Some(match pods {
        Ok(pods) => {
            let count = pods.map_or(0, |index| index.len());
            Finding::ok("names", format!("{count} pods of this node are told"))
        }
        Err(error) => Finding::new(Verdict::Warn, "names", error, remedy),
    })
}

/// The Node that is written on; nothing to say where none is.
async fn own_node(config: &Config, node: &Connected) -> Option<Finding> {
    if config.publish != Publish::On {
        return None;
    }
    let error = match node {
        Ok(node) => match node.as_ref()?.get().await {
            Ok(keys) => {
                return Some(Finding::ok("node", format!("{} is there", keys.metadata.name)));
            }
            Err(error) => error.to_string(),
        },
        Err(error) => error.to_string(),
    };
    let remedy = "apply daemonset/base, and name the node that this is with --node-name; or leave \
                  the score unpublished with --publish=off";
    Some(Finding::new(Verdict::Warn, "node", error, remedy))
}

/// The certificate, without which an agent that was told of one does not start.
fn certificate(config: &Config) -> Option<Finding> {
    let files = config.doors.certificate.clone()?;
    let path = files.certificate.display().to_string();
    Some(match Certificate::open(files) {
        Ok(_) => Finding::ok("tls", format!("{path} and its key fit together")),
        Err(error) => Finding::new(
            Verdict::Fail,
            "tls",
            error.to_string(),
            "put certificate and key there, or leave --tls-cert-file and --tls-private-key-file out",
        ),
    })
}
