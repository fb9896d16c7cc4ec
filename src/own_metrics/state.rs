//! What the agent's own metrics show, beside the score.

use std::collections::BTreeMap;
use std::time::Duration;

use super::results::Results;
use crate::client::snapshot::Agent;
use crate::clock::Moment;
use crate::contract::Thresholds;
use crate::identity::matching::Matching;
use crate::kernel::cgroup_dir::Resource;
use crate::kernel::resource::PerResource;
use crate::text_format::Number::{Float, Whole};
use crate::text_format::{FamiliesOf, families};

/// Kinds of read errors that have an alert, and so a series from the start.
const ALERTED_KINDS: [&str; 3] = ["refused", "malformed", "failed"];

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) agent: Agent,
    /// Readings of the node by reason, and the time that they took.
    pub(super) passes: BTreeMap<&'static str, (u64, Duration)>,
    /// The last sample that was counted.
    pub(super) scraped: Option<Moment>,
    pub(super) in_scope: usize,
    /// Whether the kernel reports the node's pressure; `None` before the first tick.
    pub(super) reports: Option<PerResource<bool>>,
    pub(super) has_cgroup2: bool,
    pub(super) levels: Option<Thresholds>,
    /// `None` without a source of pods.
    pub(super) matching: Option<Matching>,
    pub(super) pod_watch: Results,
    pub(super) undecodable_pods: Results,
    pub(super) publishes: Results,
    pub(super) is_unrestricted: bool,
    /// `--heartbeat-interval`; `None` unless the agent publishes on a Node.
    pub(super) heartbeat: Option<Duration>,
    /// Why there is a candidate, or none; `None` without publishing.
    pub(super) candidate_reason: Option<&'static str>,
    pub(super) candidate_writes: Results,
    pub(super) reviews: Results,
    pub(super) certificates: Option<Results>,
}

/// Metrics of an agent. Those of a feature have no series where it is off.
pub(super) static AGENT: &FamiliesOf<State> = families! {
    "psi_agent_samples_total" = |it, lines| for (reason, (count, _)) in &it.passes {
            lines.write(&[("reason", reason)], Whole(*count));
        },
        "Readings of the node and its cgroups, by reason.";
    "psi_agent_sample_seconds_total" = |it, lines| for (reason, (_, took)) in &it.passes {
            lines.write(&[("reason", reason)], Float(took.as_secs_f64()));
        },
        "Time spent reading the node and its cgroups, by reason, in seconds.";
    "psi_agent_cgroups" = |it, lines| lines.write(&[], Whole(it.in_scope as u64)),
        "Number of cgroups in scope.";
    "psi_agent_read_errors_total" = |it, lines| for (kind, count) in &it.agent.read_errors {
            if *count > 0 || ALERTED_KINDS.contains(&&**kind) {
                lines.write(&[("kind", kind)], Whole(*count));
            }
        },
        "Failures to read kernel files, by kind.";
    "psi_agent_pressure_supported" = |it, lines| if let Some(reports) = it.reports {
            for resource in Resource::ALL {
                let is_supported = u64::from(*reports.of(resource));
                lines.write(&[("resource", resource.into_str())], Whole(is_supported));
            }
        },
        "Whether the kernel reports the node's pressure of this resource (1) or not (0).";
    "psi_agent_cgroup_v2" = |it, lines| lines.write(&[], Whole(it.has_cgroup2.into())),
        "Whether the node has cgroup v2 (1) or not (0). Without it there is no score.";
    "psi_agent_level_threshold" = |it, lines| if let Some(levels) = it.levels {
            lines.write(&[("level", "high")], Float(f64::from(levels.high()) / 100.0));
            lines.write(&[("level", "medium")], Float(f64::from(levels.medium()) / 100.0));
        },
        "Score at which the level begins, 0 to 1; --levels divided by 100.";
    "psi_agent_publishes_total" = |it, lines| it.publishes.write(lines),
        "Attempts to publish the score on the Node, by result.";
    "psi_agent_candidate_info" = |it, lines| if let Some(reason) = it.candidate_reason {
            let vm = it.agent.publish.candidate.as_ref();
            let (namespace, name) = vm.map_or(("", ""), |vm| (&*vm.namespace, &*vm.name));
            let labels = [("namespace", namespace), ("name", name), ("reason", reason)];
            lines.write(&labels, Whole(1));
        },
        "VM to move first as the labels namespace and name, or without them the reason why there \
         is none; always 1.";
    "psi_agent_candidate_writes_total" = |it, lines| it.candidate_writes.write(lines),
        "Attempts to set or remove the label of the VM to move first, by result.";
    "psi_agent_token_reviews_total" = |it, lines| it.reviews.write(lines),
        "Bearer tokens without a cached decision, by the result of their review.";
    // Of an agent with a source of pods.
    "psi_agent_pods" =
        |it, lines| lines.write(&[], it.matching.map(|all| Whole(all.pods as u64))),
        "Pods of this node in the latest list.";
    "psi_agent_cgroups_without_pod" =
        |it, lines| lines.write(&[], it.matching.map(|all| Whole(all.cgroups_without_pod as u64))),
        "Cgroups without a listed pod, which have no series: pause containers and new pods.";
    "psi_agent_rejected_pod_names" =
        |it, lines| lines.write(&[], it.matching.map(|all| Whole(all.rejected_names as u64))),
        "Names in the list of pods that are malformed or too long to export.";
    "psi_agent_pod_watch_errors_total" =
        |it, lines| lines.write(&[], it.matching.map(|_| Whole(it.pod_watch.total()))),
        "Failures to list or watch pods, or to read them from a file.";
    "psi_agent_undecodable_pods_total" =
        |it, lines| lines.write(&[], it.matching.map(|_| Whole(it.undecodable_pods.total()))),
        "Pods in lists and changes from the API server that could not be decoded, and were skipped.";
    // Of an agent that publishes on a Node.
    "psi_agent_last_publish_timestamp_seconds" = |it, lines| {
            let last = it.agent.publish.last;
            let seconds = last.map_or(0, |last| last.observed_at_ms / 1000);
            lines.write(&[], it.heartbeat.map(|_| Whole(seconds)));
        },
        "Unix time of the value that this agent published last, in seconds, 0 if none.";
    "psi_agent_writes_unrestricted" =
        |it, lines| lines.write(&[], it.heartbeat.map(|_| Whole(it.is_unrestricted.into()))),
        "Whether the API server let dry runs of the agent change a key of others or another Node \
         (1) or not (0).";
    "psi_agent_heartbeat_interval_seconds" =
        |it, lines| lines.write(&[], it.heartbeat.map(|every| Float(every.as_secs_f64()))),
        "Time after which the agent renews an unchanged value on the Node, in seconds.";
};
