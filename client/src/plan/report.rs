//! A plan as a table, as JSON, and as the manifests of its migrations.

use jiff::Timestamp;
use psi_agent_plan::{LeftOut, Load, Proposal, ProposedMove};
use serde_json::{Value, json};

use super::objects::own_label;
use crate::contract::Prefix;
use crate::output::aligned;

/// Characters of a VM's name in the name of its migration.
const NAME: usize = 30;

const HEADER: [&str; 8] =
    ["VM", "FROM", "TO", "GAIN", "VM DEMAND", "FROM DEMAND/CPUS", "TO DEMAND/CPUS", "WHY"];

pub(super) fn table(proposal: &Proposal) -> String {
    let load = |load: &Load| format!("{:.1} -> {:.1} / {}", load.before, load.after, load.cpus);
    let mut rows = vec![HEADER.map(str::to_owned).to_vec()];
    rows.extend(proposal.moves.iter().map(|one| {
        vec![
            one.full_name(),
            one.source.clone(),
            one.target.clone(),
            format!("{:.1}", one.gain),
            format!("{:.1}", one.demand),
            load(&one.source_demand),
            load(&one.target_demand),
            one.reason.clone(),
        ]
    }));
    let mut text = match &proposal.none_because {
        Some(reason) => format!("No moves: {reason}\n"),
        None => aligned(&rows),
    };
    for (title, left_out) in [("VMs that stay", &proposal.vms), ("Nodes", &proposal.nodes)] {
        if !left_out.is_empty() {
            text += &format!("\n{title}:\n");
        }
        for LeftOut { name, reason } in left_out {
            text += &format!("  {name}: {reason}\n");
        }
    }
    text
}

/// The migration of a move.
pub(super) fn manifest(one: &ProposedMove, prefix: &Prefix, now: Timestamp) -> Value {
    let short: String = one.name.chars().take(NAME).collect();
    let short = short.trim_end_matches(['.', '-']);
    // VMs whose names begin alike differ in it.
    let id: String = one.uid.chars().take(8).collect();
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstanceMigration",
        "metadata": {
            "name": format!("psi-agent-{short}-{id}-{}", now.as_second()),
            "namespace": one.namespace,
            "labels": {own_label(prefix): "true"},
        },
        "spec": {
            "vmiName": one.name,
            "addedNodeSelector": {psi_agent_plan::cluster::HOSTNAME: one.hostname},
        },
    })
}

/// The migrations of a plan in YAML; a comment if there are none.
pub(super) fn manifests(proposal: &Proposal, prefix: &Prefix, now: Timestamp) -> String {
    if let Some(reason) = &proposal.none_because {
        return format!("# No moves: {reason}\n");
    }
    let document = |one: &ProposedMove| {
        let mut text = format!(
            "---\n# From {} to {}: {:.1} CPUs' worth of waiting end\n",
            one.source, one.target, one.gain
        );
        write_yaml(&manifest(one, prefix, now), "", &mut text);
        text
    };
    proposal.moves.iter().map(document).collect()
}

/// Objects of texts and objects. Texts are quoted, as in JSON, which is valid YAML.
fn write_yaml(value: &Value, indent: &str, text: &mut String) {
    for (key, value) in value.as_object().into_iter().flatten() {
        if value.is_object() {
            *text += &format!("{indent}{key}:\n");
            write_yaml(value, &format!("{indent}  "), text);
        } else {
            *text += &format!("{indent}{key}: {value}\n");
        }
    }
}

#[cfg(test)]
mod tests;
