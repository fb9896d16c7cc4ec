//! What the guest records of a scenario, from which every rule is computed afterwards.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::counters::Point;
use crate::kvm::GuestProgress;
use crate::kvm_truth::spread;
use crate::progress::LoadReport;
use crate::scenario::{Exemption, Resource, Scenario, WINDOW};
use crate::taskstats::Delays;

/// A scenario that was run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Record {
    pub kernel: String,
    pub scenario: Scenario,
    /// Every five seconds, the first at the start.
    pub points: Vec<Point>,
    /// By pod: what its load measured.
    pub reports: BTreeMap<String, LoadReport>,
    /// By pod, without its copies: what its load does and waits alone on the node.
    #[serde(default)]
    pub alone: BTreeMap<String, Alone>,
    /// What KVM guests did.
    #[serde(default)]
    pub guests: Guests,
    /// The answers of the agent by PSI, after each point of the judged time.
    pub psi: Vec<Answer>,
    /// The answers of the agent by run delay; empty in real time.
    #[serde(default)]
    pub run_delay: Vec<Answer>,
    /// The agent's answers for `psi-agent demo`, after each point: its metrics and its snapshot.
    #[serde(default)]
    pub answers: Vec<(String, String)>,
    /// What the agent would have written on its Node: by run delay, and by PSI in real time.
    #[serde(default)]
    pub published: Vec<PublishedScore>,
}

/// The agent's answer to one request for `/snapshot.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Answer {
    /// The snapshot, or why there is none.
    pub snapshot: Result<serde_json::Value, String>,
    /// How long the answer took, and the agent's CPU time meanwhile, seconds.
    pub elapsed: f64,
    pub cpu_time: f64,
}

/// What a Node would have shown from a moment on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PublishedScore {
    /// Seconds since the start.
    pub at: f64,
    /// 0 to 100.
    pub score: u8,
    pub level: String,
}

/// A load with its own limits, alone on the node.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Alone {
    pub seconds: f64,
    /// As in [`LoadReport`].
    pub work: f64,
    /// Of the thread that waited longest.
    pub delays: Delays,
}

/// What the loads in KVM guests measured.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Guests {
    /// One of each kind alone on the node, before the judged time and after it.
    pub alone: Vec<GuestAlone>,
    /// By pod: beside all others in the judged time, window by window.
    pub beside: BTreeMap<String, Vec<GuestProgress>>,
}

/// A KVM guest alone on the node.
#[derive(Debug, Serialize, Deserialize)]
pub struct GuestAlone {
    /// The kind's name.
    pub pod: String,
    pub progress: GuestProgress,
    /// The counters of all, of which only this one ran.
    pub before: Point,
    pub after: Point,
}

/// A window that is this long was read too late to be judged, seconds.
const LATE: f64 = WINDOW + 1.0;
/// The same with KVM guests, which are compared by what they do in longer times.
const LATE_WITH_GUESTS: f64 = WINDOW + 3.0;

/// Work of KVM guests alone that differs by more was measured on a machine that was too busy.
const SPREAD: f64 = 0.3;

impl Record {
    /// The exemptions on this kernel.
    pub fn exemptions(&self) -> impl Iterator<Item = &Exemption> {
        let here = |series: &String| self.kernel.starts_with(&format!("{series}."));
        let all = self.scenario.exemptions.iter();
        all.filter(move |exemption| exemption.kernels.iter().any(here))
    }

    /// The exemption of a resource's score on this kernel.
    pub fn exemption(&self, resource: Resource) -> Option<&Exemption> {
        self.exemptions().find(|exemption| exemption.score == resource)
    }

    /// Why this record can't be judged: a window that was read too late, by the lab or by an agent, or
    /// an agent that did not answer.
    pub fn failure(&self) -> Option<String> {
        let times = self.points.iter().map(|point| point.at);
        let mut windows = times.clone().zip(times.skip(1)).map(|(from, to)| to - from);
        let late = if self.scenario.has_guests() { LATE_WITH_GUESTS } else { LATE };
        if let Some(window) = windows.find(|window| *window >= late) {
            return Some(format!("the lab read a window of {window:.1} s"));
        }
        let spread = spread(self);
        if spread > SPREAD {
            return Some(format!("work alone before and after is {spread:.2} apart"));
        }
        for (source, answers) in [("PSI", &self.psi), ("run delay", &self.run_delay)] {
            for Answer { snapshot, elapsed, cpu_time } in answers {
                let snapshot = match snapshot {
                    Ok(snapshot) => snapshot,
                    Err(why) => {
                        let cost = format!("{elapsed:.1} s, of which {cpu_time:.1} s of CPU time");
                        return Some(format!("the agent by {source} after {cost}: {why}"));
                    }
                };
                let window = snapshot["agent"]["tick_window_s"].as_f64();
                if let Some(window) = window.filter(|window| *window >= late) {
                    return Some(format!("the agent by {source} read a window of {window:.1} s"));
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::{Node, Pressures};

    #[test]
    fn a_late_window_or_a_missing_answer_fails_the_record() {
        let record = |at: f64, snapshot: Result<serde_json::Value, String>| {
            let scenario = toml::from_str("about = \"\"\nvcpus = 1").unwrap();
            let node = || Node {
                pressure: Pressures::default(),
                busy: 0,
                total: 0,
                run_delay_ns: None,
                kubepods: Pressures::default(),
                usage_us: None,
                memory_io: None,
            };
            let points = [0.0, 5.0, at];
            let points = points.map(|at| Point {
                at,
                clock: 0.0,
                emulated: Vec::new(),
                node: node(),
                pods: BTreeMap::new(),
            });
            let answer = Answer { snapshot, elapsed: 0.1, cpu_time: 0.1 };
            Record {
                kernel: String::new(),
                scenario,
                points: points.into(),
                reports: BTreeMap::new(),
                alone: BTreeMap::new(),
                guests: Guests::default(),
                psi: vec![answer],
                run_delay: Vec::new(),
                answers: Vec::new(),
                published: Vec::new(),
            }
        };
        let window = |s: f64| Ok(serde_json::json!({"agent": {"tick_window_s": s}}));
        assert_eq!(record(10.9, window(5.0)).failure(), None);
        assert!(record(11.0, window(5.0)).failure().unwrap().contains("the lab"));
        assert!(record(10.0, window(6.0)).failure().unwrap().contains("the agent by PSI"));
        assert!(record(10.0, Err("503".to_owned())).failure().unwrap().contains("503"));
    }
}
