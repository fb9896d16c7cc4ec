//! `psi-agent demo`: serves an agent's recorded answers, in a loop.

use std::collections::BTreeMap;
use std::future::pending;
use std::io::Read;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use flate2::read::GzDecoder;
use hyper::{Method, StatusCode};

use crate::client::cluster::block_on;
use crate::client::snapshot::Snapshot;
use crate::clock::{self, Moment};
use crate::config::ListenAddress;
use crate::export::http::{json, page};
use crate::sampler::TICK_INTERVAL;
use crate::serve::authorization::{METRICS, PAGE, SNAPSHOT};
use crate::serve::body::{EXPOSITION, Request, Response, method_not_allowed, text, whole};
use crate::serve::connections::{Server, Service, serve_until_stopped};

/// What `tests/lab/record-demo` packs: five minutes of a node with three VMs and a batch job.
const RECORDING: &[u8] = include_bytes!("demo/recording.gz");

/// Serves the recording until SIGTERM or SIGINT.
pub fn demo(address: &ListenAddress) -> anyhow::Result<()> {
    block_on(serve_until_stopped(async {
        let answers = read(RECORDING).context("cannot read the recording")?;
        let server = Server::listen(address.listen_address, None, None)?;
        tracing::info!("Serving a recorded node, not this host, at {}", server.url);
        let demo = Demo { answers, start: clock::now() };
        Ok((server, Arc::new(demo), pending()))
    }))
}

/// The agent's answers at one moment.
struct Answer {
    metrics: String,
    snapshot: Snapshot,
}

/// Unpacks the answers of an agent, one for each tick, which a form feed separates. A line is that of the answer
/// before if it is empty, and that line with another last word if it begins with a tab.
fn read(packed: &[u8]) -> anyhow::Result<Vec<Answer>> {
    let (mut text, mut lines) = (String::new(), BTreeMap::<usize, String>::new());
    GzDecoder::new(packed).read_to_string(&mut text)?;
    let answers = text.split('\u{c}').map(|changes| {
        let count = changes.split('\n').count();
        for (at, change) in changes.split('\n').enumerate() {
            let line = lines.entry(at).or_default();
            if let Some(word) = change.strip_prefix('\t') {
                line.truncate(line.rfind(' ').map_or(0, |space| space + 1));
                line.push_str(word);
            } else if !change.is_empty() {
                change.clone_into(line);
            }
        }
        let lines: Vec<&str> = lines.values().take(count).map(String::as_str).collect();
        let answer = lines.join("\n");
        let (metrics, snapshot) = answer.split_once("\n{\n").context("no snapshot")?;
        let snapshot = serde_json::from_str(&format!("{{{snapshot}"))?;
        Ok(Answer { metrics: metrics.into(), snapshot })
    });
    answers.collect()
}

/// Answers of an agent, in a loop.
struct Demo {
    answers: Vec<Answer>,
    start: Moment,
}

impl Demo {
    /// The answer at a moment of the loop. The times of its snapshot are as if it was recorded now.
    fn at(&self, now: Instant) -> Option<Answer> {
        let ticks =
            now.saturating_duration_since(self.start.at).as_secs() / TICK_INTERVAL.as_secs();
        let at = usize::try_from(ticks).ok()?.checked_rem(self.answers.len())?;
        let Answer { metrics, snapshot } = self.answers.get(at)?;
        let mut snapshot = snapshot.clone();
        let passed = ticks * TICK_INTERVAL.as_secs() * 1000;
        let later = (self.start.unix_ms + passed).saturating_sub(snapshot.observed_at_ms);
        let name = snapshot.node_name.as_deref().unwrap_or("node");
        snapshot.node_name = Some(format!("{name} (recorded)"));
        let mut times = vec![&mut snapshot.observed_at_ms];
        times.extend(&mut snapshot.scored_at_ms);
        if let Some(agent) = &mut snapshot.agent {
            times.extend(&mut agent.ticked_at_ms);
            times.extend(agent.publish.last.as_mut().map(|last| &mut last.observed_at_ms));
        }
        times.into_iter().for_each(|time| *time += later);
        let head = "# Recorded: these are not the metrics of this host.\n";
        Some(Answer { metrics: format!("{head}{metrics}\n"), snapshot })
    }
}

impl Service for Demo {
    async fn respond(&self, request: Request, _: IpAddr) -> Response {
        let is_read = [Method::GET, Method::HEAD].contains(request.method());
        let answer = || self.at(clock::now().at);
        let response = match request.uri().path() {
            _ if !is_read => Some(method_not_allowed("GET, HEAD")),
            PAGE => Some(page()),
            METRICS => {
                answer().map(|answer| whole(StatusCode::OK, EXPOSITION, answer.metrics.into()))
            }
            SNAPSHOT => answer().map(|answer| json(&answer.snapshot)),
            _ => None,
        };
        response.unwrap_or_else(|| text(StatusCode::NOT_FOUND, "Not found. Try / or /metrics.\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recording_changes_from_tick_to_tick_and_loops() {
        let (answers, start) = (read(RECORDING).unwrap(), clock::now());
        let demo = Demo { answers, start };
        let at = |ticks: usize| {
            let since = TICK_INTERVAL * u32::try_from(ticks).unwrap();
            demo.at(start.at + since).unwrap()
        };
        let (ticks, cpu) = (demo.answers.len(), |answer: &Answer| {
            let line = answer.metrics.lines().find(|line| line.starts_with("container_cpu_usage"));
            line.unwrap().to_owned()
        });
        assert!(ticks >= 60, "{ticks}");
        assert_ne!(cpu(&at(0)), cpu(&at(1)));
        assert_eq!(cpu(&at(0)), cpu(&at(ticks)));
        let age = |ticks: usize| at(ticks).snapshot.observed_at_ms - start.unix_ms;
        assert_eq!([age(0), age(1), age(ticks)], [0, 5000, 5000 * u64::try_from(ticks).unwrap()]);
        for tick in 0..ticks {
            let Snapshot { agent, observed_at_ms, scored_at_ms, .. } = at(tick).snapshot;
            let agent = agent.unwrap();
            let of_past =
                [scored_at_ms, agent.ticked_at_ms, agent.publish.last.map(|it| it.observed_at_ms)];
            assert!(of_past.iter().all(|time| time.is_some_and(|time| time <= observed_at_ms)));
            assert_eq!((agent.history.len(), agent.last_read_error), (120, None));
        }
    }

    #[test]
    fn the_recorded_node_has_three_vms_one_throttled_and_is_contended_for_a_part_of_the_time() {
        let answers = read(RECORDING).unwrap();
        let scores = answers.iter().map(|answer| answer.snapshot.node.score.unwrap());
        let (least, most) = scores.fold((1.0, 0.0), |(least, most): (f64, f64), score| {
            (least.min(score), most.max(score))
        });
        assert!(least < 0.2 && most > 0.5, "{least} to {most}");
        for answer in &answers {
            let vms = answer.snapshot.cgroups.iter().filter(|cgroup| cgroup.is_vm);
            let waiting = vms.filter_map(|vm| vm.scored?.waiting.cpu);
            let throttled = waiting.clone().filter(|cpu| cpu.own_limit > 0.5);
            assert_eq!((waiting.count(), throttled.count()), (3, 1));
        }
    }
}
