//! The agents beside a scenario: one by PSI and, in scenarios of CPU, one by run delay.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context, bail};
use serde_json::Value;

use crate::counters::text;
use crate::load::now;
use crate::record::{Answer, PublishedScore};
use crate::scenario::Scenario;
use crate::tree;

/// Reading other cgroups for a snapshot is a load on an emulated CPU.
const FEW: &[&str] = &["--families=pressure", "--scope=pods"];

/// All of them.
pub struct Agents {
    pub psi: Agent,
    pub run_delay: Option<Agent>,
}

/// A running agent.
pub struct Agent {
    child: Child,
    address: &'static str,
    log: PathBuf,
}

impl Agents {
    /// Starts them in a cgroup of their own.
    pub fn start(scenario: &Scenario, cgroup: &Path, pods: &Path) -> anyhow::Result<Self> {
        // In real time a second agent would disturb what the first one measures, if that is short.
        let second = !scenario.real_time || scenario.has_guests();
        let flags: &[&str] = if scenario.answers { &["--scope=all"] } else { FEW };
        Ok(Self {
            psi: Agent::start("psi", "127.0.0.1:9942", cgroup, pods, FEW)?,
            run_delay: second
                .then(|| Agent::start("run-delay", "127.0.0.1:9943", cgroup, pods, flags))
                .transpose()?,
        })
    }

    /// The snapshots of both, at the same time.
    pub fn snapshots(&self) -> (Answer, Option<Answer>) {
        thread::scope(|scope| {
            let second = self.run_delay.as_ref().map(|agent| scope.spawn(|| agent.snapshot()));
            let first = self.psi.snapshot();
            (first, second.and_then(|thread| thread.join().ok()))
        })
    }

    /// Ends them, and their cgroup.
    pub fn finish(self, cgroup: &Path) -> anyhow::Result<()> {
        tree::remove(cgroup)?;
        for mut agent in [Some(self.psi), self.run_delay].into_iter().flatten() {
            agent.child.wait()?;
        }
        Ok(())
    }
}

impl Agent {
    fn start(
        source: &str,
        address: &'static str,
        cgroup: &Path,
        pods: &Path,
        flags: &[&str],
    ) -> anyhow::Result<Self> {
        let path = Path::new("/tmp").join(format!("agent-{source}.log"));
        let log = File::create(&path)?;
        let child = Command::new("/bin/psi-agent")
            .arg("--pods-file")
            .arg(pods)
            .args(["--listen-address", address, "--cpu-source", source])
            .args(flags)
            // With the label a change of the level is published at once.
            .arg("--label")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("psi-agent")?;
        fs::write(cgroup.join("cgroup.procs"), child.id().to_string())?;
        Ok(Self { child, address, log: path })
    }

    /// What it would have written on its Node, from its log. `start` is by the same clock.
    pub fn published(&self, start: f64) -> anyhow::Result<Vec<PublishedScore>> {
        let log = text(&self.log);
        let lines = log.lines().filter(|line| line.contains("\"Would publish\""));
        lines.map(|line| published(line, start).context(line.to_owned())).collect()
    }

    /// Its snapshot, and what that costs.
    pub fn snapshot(&self) -> Answer {
        let (start, cpu) = (now(), self.cpu_time());
        let snapshot = self.request().map_err(|error| format!("{error:#}"));
        Answer { snapshot, elapsed: now() - start, cpu_time: self.cpu_time() - cpu }
    }

    /// CPU time of its threads, seconds.
    #[allow(clippy::cast_precision_loss, reason = "a guest is up for minutes")]
    fn cpu_time(&self) -> f64 {
        let threads = fs::read_dir(format!("/proc/{}/task", self.child.id()));
        let ran = threads.into_iter().flatten().flatten().filter_map(|thread| {
            let schedstat = text(&thread.path().join("schedstat"));
            schedstat.split(' ').next()?.parse::<u64>().ok()
        });
        ran.sum::<u64>() as f64 / 1e9
    }

    fn request(&self) -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&self.get("/snapshot.json")?)?)
    }

    /// The body of its answer. By HTTP 1.0 it has no chunks.
    pub fn get(&self, path: &str) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(self.address)
            .with_context(|| format!("the agent does not answer: {}", text(&self.log)))?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let Some((head, body)) = answer.split_once("\r\n\r\n") else {
            bail!("the agent's answer has no body: {answer}");
        };
        if !head.contains(" 200 ") {
            bail!("the agent answered {answer}; its log: {}", text(&self.log));
        }
        Ok(body.to_owned())
    }
}

fn published(line: &str, start: f64) -> Option<PublishedScore> {
    let line: Value = serde_json::from_str(line).ok()?;
    let fields = &line["fields"];
    Some(PublishedScore {
        at: time_of_day(line["timestamp"].as_str()?)? - start.rem_euclid(86_400.0),
        score: u8::try_from(fields["score"].as_u64()?).ok()?,
        level: fields["level"].as_str()?.to_owned(),
    })
}

/// Seconds since midnight of an RFC 3339 time in UTC. All scenarios of a guest are on one day.
fn time_of_day(timestamp: &str) -> Option<f64> {
    let (_, time) = timestamp.strip_suffix('Z')?.split_once('T')?;
    let numbers: Vec<f64> = time.split(':').filter_map(|number| number.parse().ok()).collect();
    let [hours, minutes, seconds] = numbers.as_slice() else { return None };
    Some(hours * 3600.0 + minutes * 60.0 + seconds)
}
