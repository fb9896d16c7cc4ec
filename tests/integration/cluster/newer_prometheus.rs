//! What Debian's Prometheus can't check: how agents are found in Kubernetes. And the rules and metrics
//! once more, by a newer version.

use crate::support::cgroup::OwnCgroup;
use crate::support::prometheus::{lint_agent, newer_promtool, promtool, prove_rules};

#[test]
#[ignore = "needs promtool (tests/prometheus/build)"]
fn promtool_proves_the_rules_and_how_agents_are_found() {
    for file in ["scrape.yaml", "scrape-auth.yaml"] {
        // The files that it names are in the pod of that Prometheus.
        let file = format!("daemonset/prometheus/{file}");
        promtool(&newer_promtool(), &["check", "config", "--syntax-only", &file]);
    }
    prove_rules(&newer_promtool());
}

#[test]
#[ignore = "needs promtool (tests/prometheus/build), root and a cgroup2 mount"]
fn promtool_finds_nothing_wrong() {
    lint_agent(&newer_promtool(), &OwnCgroup::new("newer-lint"));
}
