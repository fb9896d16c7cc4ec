//! The agents beside a scenario: one by pressure, and where CPU is what matters one by run delay.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::record::text;
use crate::scenario::Scenario;
use crate::tree;

/// All of them.
pub struct Agents {
    pub by_pressure: Agent,
    pub by_run_delay: Option<Agent>,
}

/// A running agent.
pub struct Agent {
    child: Child,
    address: &'static str,
    log: PathBuf,
}

impl Agents {
    /// Starts them in a cgroup of theirs.
    pub fn start(scenario: &Scenario, cgroup: &Path, pods: &Path) -> anyhow::Result<Self> {
        // In real time a second one would take a part of what the first one measures.
        let second = !scenario.real_time;
        Ok(Self {
            by_pressure: Agent::start("psi", "127.0.0.1:9942", cgroup, pods)?,
            by_run_delay: second
                .then(|| Agent::start("run-delay", "127.0.0.1:9943", cgroup, pods))
                .transpose()?,
        })
    }

    /// Ends them, and their cgroup.
    pub fn finish(self, cgroup: &Path) -> anyhow::Result<()> {
        tree::remove(cgroup)?;
        for mut agent in [Some(self.by_pressure), self.by_run_delay].into_iter().flatten() {
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
    ) -> anyhow::Result<Self> {
        let path = Path::new("/tmp").join(format!("agent-{source}.log"));
        let log = File::create(&path)?;
        let child = Command::new("/bin/psi-agent")
            .arg("--pods-file")
            .arg(pods)
            .args(["--listen-address", address, "--families", "pressure", "--cpu-source", source])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("psi-agent")?;
        fs::write(cgroup.join("cgroup.procs"), child.id().to_string())?;
        Ok(Self { child, address, log: path })
    }

    /// What it shows now.
    pub fn snapshot(&self) -> anyhow::Result<Value> {
        let mut stream = TcpStream::connect(self.address)
            .with_context(|| format!("the agent does not answer: {}", text(&self.log)))?;
        stream
            .write_all(b"GET /snapshot.json HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let Some((head, body)) = answer.split_once("\r\n\r\n") else {
            bail!("the agent's answer has no body: {answer}");
        };
        if !head.contains(" 200 ") {
            bail!("the agent answered {answer}");
        }
        Ok(serde_json::from_str(body)?)
    }
}
