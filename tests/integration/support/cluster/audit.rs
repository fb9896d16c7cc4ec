//! What the agents did, and which evictions were asked for, by the API server's own audit log.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use super::Cluster;

/// A request of the agent's, as the API server's audit log has it.
#[derive(Debug)]
pub(crate) struct Audited {
    pub(crate) verb: String,
    pub(crate) node: String,
    /// The pod that its token is bound to.
    pub(crate) by: String,
    pub(crate) code: u64,
    pub(crate) body: Value,
}

/// An eviction that somebody asked for.
#[derive(Debug)]
pub(crate) struct Eviction {
    pub(crate) by: String,
    pub(crate) pod: String,
    /// 201 where it was granted.
    pub(crate) code: u64,
    pub(crate) reason: String,
}

impl Cluster {
    /// All evictions that were asked for so far, by whomever.
    pub(crate) fn evictions(&self) -> Vec<Eviction> {
        let log = self.audit_log().into_iter();
        let evictions = log.filter(|event| event["objectRef"]["subresource"] == "eviction");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let evictions = evictions.map(|event| Eviction {
            by: text(&event["user"]["username"]),
            pod: text(&event["objectRef"]["name"]),
            code: event["responseStatus"]["code"].as_u64().unwrap(),
            reason: text(&event["requestObject"]["metadata"]["annotations"]["reason"]),
        });
        evictions.collect()
    }

    /// The audit log so far.
    fn audit_log(&self) -> Vec<Value> {
        let log = fs::read_to_string(self.folder.join("audit.log")).unwrap();
        log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// What the agents' accounts did with which resources so far.
    pub(crate) fn used_rights(&self) -> BTreeSet<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let log = self.audit_log();
        log.iter()
            .filter(|event| event["objectRef"]["subresource"] != "eviction")
            .map(|event| (text(&event["objectRef"]["resource"]), text(&event["verb"])))
            .collect()
    }

    /// How often the agents did anything with this resource so far.
    pub(crate) fn uses_of(&self, resource: &str) -> usize {
        let log = self.audit_log().into_iter();
        log.filter(|event| event["objectRef"]["resource"] == resource).count()
    }

    /// What a role allows to do with which resources.
    pub(crate) fn granted_rights(&self, role: &str) -> BTreeSet<(String, String)> {
        let role = self.get(&["clusterrole", role]);
        let words = |value: &Value| {
            let words = value.as_array().unwrap().iter();
            words.map(|word| word.as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let mut granted = BTreeSet::new();
        for rule in role["rules"].as_array().unwrap() {
            for resource in words(&rule["resources"]) {
                granted.extend(words(&rule["verbs"]).into_iter().map(|it| (resource.clone(), it)));
            }
        }
        granted
    }

    /// All requests of the agents for Nodes so far, except dry runs.
    pub(crate) fn audited(&self) -> Vec<Audited> {
        let log = self.audit_log().into_iter();
        let is_dry_run = |uri: &Value| uri.as_str().unwrap_or_default().contains("dryRun=");
        let of_nodes = log.filter(|event| {
            event["objectRef"]["resource"] == "nodes" && !is_dry_run(&event["requestURI"])
        });
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let audited = of_nodes.map(|event| Audited {
            verb: text(&event["verb"]),
            node: text(&event["objectRef"]["name"]),
            by: text(&event["user"]["extra"]["authentication.kubernetes.io/pod-name"][0]),
            code: event["responseStatus"]["code"].as_u64().unwrap(),
            body: event["requestObject"].clone(),
        });
        audited.collect()
    }
}

/// Whatever the agent's accounts ask, of Nodes with what they send, and all evictions; nothing else.
pub(super) fn audit_policy() -> Value {
    json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
        "rules": [
            {
                "level": "Request", "verbs": ["create"],
                "resources": [{"group": "", "resources": ["pods/eviction"]}],
            },
            {
                "level": "Request", "userGroups": ["system:serviceaccounts:psi-agent"],
                "resources": [{"group": "", "resources": ["nodes"]}],
            },
            {"level": "Metadata", "userGroups": ["system:serviceaccounts:psi-agent"]},
            {"level": "None"},
        ],
    })
}
