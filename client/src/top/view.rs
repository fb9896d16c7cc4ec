//! Values that the table shows, computed from a snapshot. Pure.

use std::collections::HashMap;

use crate::resource::PerResource;
use crate::snapshot::{Agent, Cgroup, DatedError, Snapshot, Waiting};

impl Snapshot {
    /// Computes the CPU use of each cgroup since `before`. A tick contains the use of scored
    /// containers only.
    pub(super) fn compute_cpu_use(&mut self, before: &Self) {
        let Some(passed) = self.observed_at_ms.checked_sub(before.observed_at_ms) else { return };
        let seconds = std::time::Duration::from_millis(passed).as_secs_f64();
        let then: HashMap<&str, &Cgroup> =
            before.cgroups.iter().map(|cgroup| (cgroup.id.as_str(), cgroup)).collect();
        for cgroup in &mut self.cgroups {
            let Some(then) = then.get(cgroup.id.as_str()) else { continue };
            // Requests within a second get the same counters, so the last value is still valid.
            cgroup.used = if passed == 0 {
                then.used
            } else {
                let more = cgroup.cpu_seconds.zip(then.cpu_seconds).map(|(now, then)| now - then);
                // A decreasing counter belongs to a new cgroup at the same path.
                more.filter(|more| *more >= 0.0).map(|more| more / seconds)
            };
        }
    }

    /// The problems of the agent, and why there is no score, one sentence each, in the words of the page.
    pub(super) fn problems(&self) -> impl Iterator<Item = String> {
        let Agent { publish, pods_error, pods_listed, .. } = self.agent.clone().unwrap_or_default();
        let say = |what: &str, problem: Option<DatedError>| {
            problem.map(|problem| format!("{what}: {}", problem.message))
        };
        let unlisted = "The pods of this node are not listed yet, so they have no series.";
        let PerResource { cpu, memory, io } = &self.node.pressure;
        let has_psi = [cpu, memory, io].iter().any(|pressure| pressure.some.is_some());
        let no_psi = "The kernel reports no pressure (PSI): boot with psi=1.";
        let problems = [
            say("The score cannot be published", publish.error),
            say("The pods cannot be listed", pods_error),
            (pods_listed == Some(false)).then(|| unlisted.to_owned()),
            self.node.no_score.as_ref().map(|why| format!("No score: {why}.")),
            (self.window_s.is_some() && !has_psi).then(|| no_psi.to_owned()),
        ];
        problems.into_iter().flatten()
    }

    /// Why no cgroup is listed, and what to do.
    pub(super) fn nothing_to_show(&self) -> String {
        match self.scope.as_deref() {
            _ if self.agent.as_ref().is_some_and(|agent| agent.pods_listed == Some(false)) => {
                "Waiting for the list of pods; if this lasts, run `psi-agent check`.".into()
            }
            Some("all") => {
                "There are no cgroups below the cgroup root: set --cgroup-root to the host's \
                            cgroup2 mount."
                    .into()
            }
            Some(scope) => format!("No running pod is in the scope {scope}: see --scope."),
            None => "There are no cgroups in the agent's --scope.".into(),
        }
    }

    /// The score with its level, or why there is none.
    pub(super) fn score(&self) -> String {
        let agent = self.agent.as_ref();
        let level = agent.and_then(|agent| agent.publish.level.as_deref());
        match (self.node.score, self.warm_up_left_s) {
            (Some(score), _) => {
                format!("score {:.0} {}", score * 100.0, level.unwrap_or_default())
            }
            (None, Some(left)) => format!("warming up, {left:.0} s left"),
            (None, None) => "score -".into(),
        }
    }
}

impl Cgroup {
    /// CPUs used beyond its request; all CPUs used if the request is unknown.
    pub(super) fn excess(&self) -> Option<f64> {
        Some((self.usage()? - self.cpu_request.unwrap_or(0.0)).max(0.0))
    }

    /// CPUs used in the last tick, else since the snapshot before.
    pub(super) fn usage(&self) -> Option<f64> {
        self.scored.and_then(|scored| scored.usage).or(self.used)
    }

    pub(super) fn waiting(&self) -> PerResource<Option<Waiting>> {
        self.scored.map(|scored| scored.waiting).unwrap_or_default()
    }

    /// The larger of CPU and memory contention, as on the page. Where CPU is unknown, memory's zero is
    /// not the larger.
    pub(super) fn contention(&self) -> Option<f64> {
        let PerResource { cpu, memory, .. } = self.scored?.contention;
        memory.filter(|&memory| memory > cpu.unwrap_or(0.0)).or(cpu)
    }

    /// Whether the CPU ready of a VM exceeds the budget that its owner set.
    pub(super) fn is_over_budget(&self) -> bool {
        let ready = self.scored.and_then(|scored| scored.cpu_ready);
        self.is_vm && ready.zip(self.cpu_wait_budget).is_some_and(|(ready, budget)| ready > budget)
    }

    /// The displayed name.
    pub(super) fn name(&self) -> String {
        let state = match (self.awaits_handover, self.is_over_budget()) {
            (Some(true), _) => " (arriving)",
            (_, true) => " (over budget)",
            (_, false) => "",
        };
        let Self { namespace, pod, container, vm, unit, .. } = self;
        let container = container.as_deref().unwrap_or_default();
        match (namespace, vm, pod) {
            (Some(namespace), Some(vm), _) if self.is_vm => format!("{namespace}/{vm}{state}"),
            (None, Some(vm), _) if self.is_vm => vm.clone(),
            (Some(namespace), _, Some(pod)) if container.is_empty() => format!("{namespace}/{pod}"),
            (Some(namespace), _, Some(pod)) => format!("{namespace}/{pod}/{container}"),
            _ => unit.as_ref().unwrap_or(&self.id).clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_pressure_is_a_problem_once_it_was_read() {
        let problems = |json: &str| -> Vec<String> {
            serde_json::from_str::<Snapshot>(json).unwrap().problems().collect()
        };
        let start = r#"{"version": "9", "observed_at_ms": 1, "cgroups": []"#;
        let without = "The kernel reports no pressure (PSI): boot with psi=1.";
        assert_eq!(problems(&format!("{start}, \"node\": {{}}}}")), Vec::<String>::new());
        let read = format!("{start}, \"window_s\": 5");
        assert_eq!(problems(&format!("{read}, \"node\": {{}}}}")), [without]);
        let calm = r#"{"pressure": {"cpu": {"some": 0.0}, "memory": {}, "io": {}}}"#;
        assert_eq!(problems(&format!("{read}, \"node\": {calm}}}")), Vec::<String>::new());
    }

    fn view(at_ms: u64, cgroups: &[(&str, Option<f64>)]) -> Snapshot {
        let cgroups = cgroups.iter().map(|(id, cpu_seconds)| {
            serde_json::json!({"id": id, "level": "host", "is_vm": false, "cpu_seconds": cpu_seconds,
                "pressure": {"cpu": {}, "memory": {}, "io": {}}})
        });
        let json = serde_json::json!({"version": "9", "observed_at_ms": at_ms,
            "node": {"contention": {}, "contended": 0}, "cgroups": cgroups.collect::<Vec<_>>()});
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn where_cpu_contention_is_unknown_a_zero_of_memory_is_not_the_larger() {
        let of = |cpu: Option<f64>, memory: Option<f64>| {
            let mut snapshot = serde_json::to_value(view(1, &[("/a", None)])).unwrap();
            snapshot["cgroups"][0]["scored"] = serde_json::json!({
                "contention": {"cpu": cpu, "memory": memory}, "waiting": {},
            });
            serde_json::from_value::<Snapshot>(snapshot).unwrap().cgroups[0].contention()
        };
        assert_eq!(of(None, Some(0.0)), None);
        assert_eq!(of(None, Some(0.2)), Some(0.2));
        assert_eq!(of(Some(0.0), Some(0.0)), Some(0.0));
        assert_eq!(of(Some(0.1), None), Some(0.1));
    }

    fn used(view: &Snapshot) -> Vec<Option<f64>> {
        view.cgroups.iter().map(|cgroup| cgroup.used).collect()
    }

    #[test]
    fn cpu_use_is_computed_between_two_snapshots() {
        let first = view(1_000, &[("/a", Some(10.0)), ("/b", Some(10.0)), ("/c", None)]);
        assert_eq!(used(&first), [None; 3]);
        let mut second =
            view(3_000, &[("/a", Some(13.0)), ("/b", Some(1.0)), ("/c", Some(1.0)), ("/d", None)]);
        second.compute_cpu_use(&first);
        assert_eq!(used(&second), [Some(1.5), None, None, None]);
        let mut shared = view(3_000, &[("/a", Some(13.0))]);
        shared.compute_cpu_use(&second);
        assert_eq!(used(&shared), [Some(1.5)]);
    }

    #[test]
    fn json_without_the_fields_of_a_snapshot_is_refused() {
        for text in ["", "null", "[]", "{}", "<html>", r#"{"version": 1}"#] {
            assert!(serde_json::from_str::<Snapshot>(text).is_err(), "{text}");
        }
    }
}
