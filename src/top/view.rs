//! What `/snapshot.json` says, as far as the table shows it. Pure. Agents of other versions may say
//! less or more: what is not there is `None`.

use std::collections::HashMap;

use serde::Deserialize;

/// The node and its cgroups.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct View {
    pub(super) version: String,
    pub(super) observed_at_ms: u64,
    pub(super) node: Node,
    pub(super) agent: Option<Agent>,
    pub(super) cgroups: Vec<Cgroup>,
}

/// What goes wrong in the agent that was asked.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Agent {
    pub(super) pods_listed: Option<bool>,
    pub(super) pods_error: Option<Trouble>,
    pub(super) publish: Publish,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Publish {
    pub(super) error: Option<Trouble>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Trouble {
    pub(super) message: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Node {
    pub(super) score: Option<f64>,
    pub(super) contention: Contention,
    pub(super) held_back: u64,
    #[serde(default)]
    pub(super) pressure: Pressures,
    pub(super) utilization: Option<f64>,
    pub(super) steal: Option<f64>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub(super) struct Contention {
    pub(super) cpu: Option<f64>,
    pub(super) memory: Option<f64>,
    pub(super) io: Option<f64>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Cgroup {
    pub(super) id: String,
    pub(super) level: String,
    pub(super) namespace: Option<String>,
    pub(super) pod: Option<String>,
    pub(super) container: Option<String>,
    pub(super) vm: Option<String>,
    #[serde(default)]
    pub(super) is_user: bool,
    pub(super) is_vm: bool,
    pub(super) awaits_handover: Option<bool>,
    pub(super) pressure: Pressures,
    pub(super) scored: Option<Scored>,
    pub(super) cpu_seconds: Option<f64>,
    pub(super) cpu_request: Option<f64>,
    /// CPUs used since the look before; no part of the snapshot.
    #[serde(skip)]
    pub(super) used: Option<f64>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub(super) struct Pressures {
    pub(super) cpu: Pressure,
    pub(super) memory: Pressure,
    pub(super) io: Pressure,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub(super) struct Pressure {
    pub(super) some: Option<f64>,
    pub(super) full: Option<f64>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct Scored {
    pub(super) usage: Option<f64>,
    pub(super) contention: Contention,
    pub(super) waiting: WaitingOfEach,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub(super) struct WaitingOfEach {
    pub(super) cpu: Option<Waiting>,
    pub(super) memory: Option<Waiting>,
    pub(super) io: Option<Waiting>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct Waiting {
    pub(super) raw: f64,
    pub(super) own_limit: f64,
    pub(super) left: f64,
}

impl View {
    pub(super) fn parse(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }

    /// What each cgroup used since `before`: ticks leave CPU times out where nobody waits, and are
    /// about no more than the containers that are scored.
    pub(super) fn use_since(&mut self, before: &Self) {
        let Some(passed) = self.observed_at_ms.checked_sub(before.observed_at_ms) else { return };
        let seconds = std::time::Duration::from_millis(passed).as_secs_f64();
        let then: HashMap<&str, &Cgroup> =
            before.cgroups.iter().map(|cgroup| (cgroup.id.as_str(), cgroup)).collect();
        for cgroup in &mut self.cgroups {
            let Some(then) = then.get(cgroup.id.as_str()) else { continue };
            // Two who ask within a second are given the same counters: what was known holds on.
            cgroup.used = if passed == 0 {
                then.used
            } else {
                let more = cgroup.cpu_seconds.zip(then.cpu_seconds).map(|(now, then)| now - then);
                // A counter that went back is another cgroup of the same name.
                more.filter(|more| *more >= 0.0).map(|more| more / seconds)
            };
        }
    }
}

impl Agent {
    /// What goes wrong, each a sentence, in the words of the page.
    pub(super) fn troubles(&self) -> Vec<String> {
        let say = |what: &str, trouble: &Option<Trouble>| {
            trouble.as_ref().map(|trouble| format!("{what}: {}", trouble.message))
        };
        let unlisted = "The pods of this node are not listed yet: their series wait for names.";
        [
            say("The score cannot be written", &self.publish.error),
            say("The pods are not told", &self.pods_error),
            (self.pods_listed == Some(false)).then(|| unlisted.to_owned()),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

impl Cgroup {
    /// CPUs that it used beyond those that it asked for; all of them, where nobody knows of any.
    pub(super) fn over(&self) -> Option<f64> {
        Some((self.usage()? - self.cpu_request.unwrap_or(0.0)).max(0.0))
    }

    /// CPUs that it used: in the last tick where that is told, else since the look before.
    pub(super) fn usage(&self) -> Option<f64> {
        self.scored.and_then(|scored| scored.usage).or(self.used)
    }

    /// Share of what it wanted that it had to wait for: the larger of CPU and memory, as on the
    /// page.
    pub(super) fn contention(&self) -> Option<f64> {
        let Contention { cpu, memory, .. } = self.scored?.contention;
        cpu.into_iter().chain(memory).reduce(f64::max)
    }

    /// What people call it.
    pub(super) fn name(&self) -> String {
        let arriving = if self.awaits_handover == Some(true) { " (arriving)" } else { "" };
        let container = self.container.as_deref().unwrap_or_default();
        match (&self.namespace, &self.vm, &self.pod) {
            (Some(namespace), Some(vm), _) if self.is_vm => format!("{namespace}/{vm}{arriving}"),
            (Some(namespace), _, Some(pod)) if container.is_empty() => format!("{namespace}/{pod}"),
            (Some(namespace), _, Some(pod)) => format!("{namespace}/{pod}/{container}"),
            _ => self.id.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(at_ms: u64, cgroups: &[(&str, Option<f64>)]) -> View {
        let cgroups = cgroups.iter().map(|(id, cpu_seconds)| {
            serde_json::json!({"id": id, "level": "host", "is_vm": false, "cpu_seconds": cpu_seconds,
                "pressure": {"cpu": {}, "memory": {}, "io": {}}})
        });
        let json = serde_json::json!({"version": "9", "observed_at_ms": at_ms,
            "node": {"contention": {}, "held_back": 0}, "cgroups": cgroups.collect::<Vec<_>>()});
        View::parse(json.to_string().as_bytes()).unwrap()
    }

    fn used(view: &View) -> Vec<Option<f64>> {
        view.cgroups.iter().map(|cgroup| cgroup.used).collect()
    }

    #[test]
    fn what_was_used_is_told_between_two_looks() {
        let first = view(1_000, &[("/a", Some(10.0)), ("/b", Some(10.0)), ("/c", None)]);
        assert_eq!(used(&first), [None; 3]);
        let mut second =
            view(3_000, &[("/a", Some(13.0)), ("/b", Some(1.0)), ("/c", Some(1.0)), ("/d", None)]);
        second.use_since(&first);
        assert_eq!(used(&second), [Some(1.5), None, None, None]);
        let mut shared = view(3_000, &[("/a", Some(13.0))]);
        shared.use_since(&second);
        assert_eq!(used(&shared), [Some(1.5)]);
    }

    #[test]
    fn an_answer_of_something_else_is_refused() {
        for text in ["", "null", "[]", "{}", "<html>", r#"{"version": 1}"#] {
            assert!(View::parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
