use super::*;

fn proposal() -> Proposal {
    let load = |before: f64, after: f64| Load { before, after, cpus: 32.0 };
    let one = ProposedMove {
        uid: "01234567-89ab-4000-8000-000000000000".into(),
        namespace: "vms".into(),
        name: "web".into(),
        source: "node-a".into(),
        target: "node-b".into(),
        hostname: "host-b".into(),
        demand: 4.0,
        gain: 3.25,
        reason: "most gain of 2 possible moves".into(),
        source_demand: load(40.0, 36.0),
        target_demand: load(4.0, 8.0),
    };
    let stays = LeftOut { name: "vms/db".into(), reason: "it has huge pages".into() };
    Proposal { moves: vec![one], vms: vec![stays], ..Proposal::default() }
}

fn now() -> Timestamp {
    "2026-01-02T12:00:00Z".parse().unwrap()
}

#[test]
fn a_table_shows_moves_and_reasons() {
    let expected = "\
VM        FROM     TO       GAIN   VM DEMAND   FROM DEMAND/CPUS    TO DEMAND/CPUS    WHY
vms/web   node-a   node-b   3.2    4.0         40.0 -> 36.0 / 32   4.0 -> 8.0 / 32   most gain of 2 possible moves

VMs that stay:
  vms/db: it has huge pages
";
    assert_eq!(table(&proposal()), expected);
    let none = Proposal { none_because: Some("calm".into()), ..Proposal::default() };
    assert_eq!(table(&none), "No moves: calm\n");
    assert_eq!(manifests(&none, &Prefix::default(), now()), "# No moves: calm\n");
}

#[test]
fn a_manifest_selects_the_target_by_its_hostname_label() {
    let expected = "\
---
# From node-a to node-b: 3.2 CPUs' worth of waiting end
apiVersion: \"kubevirt.io/v1\"
kind: \"VirtualMachineInstanceMigration\"
metadata:
  labels:
    psi-agent.io/planner: \"true\"
  name: \"psi-agent-web-01234567-1767355200\"
  namespace: \"vms\"
spec:
  addedNodeSelector:
    kubernetes.io/hostname: \"host-b\"
  vmiName: \"web\"
";
    assert_eq!(manifests(&proposal(), &Prefix::default(), now()), expected);
    let long =
        ProposedMove { name: format!("{}.{}", "a".repeat(29), "b"), ..proposal().moves[0].clone() };
    let name = manifest(&long, &Prefix::default(), now())["metadata"]["name"].to_string();
    assert_eq!(name, format!("\"psi-agent-{}-01234567-1767355200\"", "a".repeat(29)));
}

#[test]
fn json_has_all_numbers() {
    let plan = json!(proposal());
    assert_eq!(plan["moves"][0]["gain"], 3.25);
    assert_eq!(
        plan["moves"][0]["targetDemand"],
        json!({"before": 4.0, "after": 8.0, "cpus": 32.0})
    );
    assert_eq!(plan["vms"][0]["reason"], "it has huge pages");
    assert_eq!(plan["noMovesBecause"], Value::Null);
}
