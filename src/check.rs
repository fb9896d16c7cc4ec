//! `psi-agent check`: what the agent needs of this host, one line each, and what to do about it.

use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;

use crate::cgroup_path::{Level, Place};
use crate::clock;
use crate::cluster::own_node::OwnNode;
use crate::cluster::{connect, event_loop};
use crate::config::{Config, PodSource, Publish};
use crate::host::Host;
use crate::kernel::cgroup_dir::{CgroupDir, CgroupRoot, Resource};
use crate::kernel::cgroup_tree::{CgroupTree, Extent};
use crate::kernel::proc_root::ProcRoot;
use crate::kernel::{ReadBuffer, ReadError, Situation};
use crate::pod_source::read_now;
use crate::reader::{SeenThreads, see_threads};
use crate::sample::CpuSource;
use crate::serve::tls::Certificate;

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
        tree.follow(clock::now().at);
        findings.push(cgroups(&mut tree));
        if psi_is_on {
            findings.push(cgroup_pressure(&tree, &mut buffer));
        }
        findings.push(controllers(tree.root(), &mut buffer));
        findings.push(pods(&tree));
        if by_threads {
            findings.push(threads(&host.proc, &tree));
        }
    }
    findings.extend(who_tells_of_pods(&config.pods));
    findings.extend(own_node(config));
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
    match error.situation {
        Situation::Refused(_) => {
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
        Situation::Vanished(_) | Situation::Unsupported(_) => {
            let parameter = host.proc.boot_parameter("psi", buffer);
            let parameter = parameter.map_or("no psi=".into(), |value| format!("psi={value}"));
            Finding::new(
                Verdict::Fail,
                about,
                format!("off in this kernel ({error}; its command line has {parameter})"),
                "boot with psi=1; if that changes nothing the kernel was built without CONFIG_PSI",
            )
        }
        Situation::Malformed(_) | Situation::Failed(_) => Finding::new(
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
            Err(ReadError { situation: Situation::Vanished(_), .. }) => {
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
            pods += usize::from(pod.level == Level::Pod);
            containers += usize::from(matches!(pod.level, Level::Container(_)));
        }
    }
    Finding::ok("pods", format!("{pods} pods and {containers} containers by their paths"))
}

/// Whether the threads are to be seen that the run delay is told of.
fn threads(proc: &ProcRoot, tree: &CgroupTree) -> Finding {
    let about = "run delay";
    let SeenThreads { containers, hidden, threads, error } =
        see_threads(proc, tree, clock::now().at);
    let text = match error {
        Some(error) => error.to_string(),
        None if hidden > 0 => {
            format!("no process of {hidden} of {containers} containers is to be seen")
        }
        None => {
            let text = format!("{threads} threads of {containers} containers are told");
            return Finding::ok(about, text);
        }
    };
    Finding::new(
        Verdict::Fail,
        about,
        text,
        "name a /proc of the host's own with --proc-root, mounted without hidepid; in a pod, mount \
         it (daemonset/components/run-delay)",
    )
}

/// Where names come from; nothing to say where the agent stands alone.
fn who_tells_of_pods(source: &PodSource) -> Option<Finding> {
    let remedy = match source {
        PodSource::Nobody => return None,
        PodSource::File(_) => "write the file as `kubectl get pods -o json` does",
        PodSource::Cluster(_) => {
            "let the agent reach the API server, and its account list and watch pods"
        }
    };
    Some(match read_now(source) {
        Ok(told) => {
            let count = told.map_or(0, |index| index.len());
            Finding::ok("names", format!("{count} pods of this node are told"))
        }
        Err(error) => Finding::new(Verdict::Warn, "names", format!("{error:#}"), remedy),
    })
}

/// The Node that is written on; nothing to say where none is.
fn own_node(config: &Config) -> Option<Finding> {
    let PodSource::Cluster(cluster) = &config.pods else { return None };
    if config.publish != Publish::On {
        return None;
    }
    let looked = event_loop().and_then(|event_loop| {
        event_loop.block_on(async {
            let client = connect(cluster).await?;
            Ok(OwnNode::new(client, cluster.node_name.clone()).look().await)
        })
    });
    let error = match looked {
        Ok(Ok(keys)) => return Some(Finding::ok("node", format!("{} is there", keys.name))),
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    let remedy = "apply daemonset/base, and name the node that this is with --node-name; or leave \
                  the score unpublished with --publish=off";
    Some(Finding::new(Verdict::Warn, "node", error, remedy))
}

/// The certificate, without which an agent that was told of one does not start.
fn certificate(config: &Config) -> Option<Finding> {
    let files = config.access.certificate.clone()?;
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
