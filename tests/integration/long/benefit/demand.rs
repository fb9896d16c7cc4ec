//! Demand of VMs by a seed, and the load that works it off.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use super::{FROM_MINUTE, MEASURED, NODES, VMS};
use crate::support::folder::Folder;

/// The work of all VMs, and what each wants of it.
pub(super) struct Demand {
    pub(super) folder: Folder,
    /// CPU seconds that a VM wants in [`MEASURED`].
    pub(super) wanted: BTreeMap<String, f64>,
    program: PathBuf,
}

impl Demand {
    /// Generated with a seed, as in the simulation, but each VM has one vCPU.
    pub(super) fn generate(seed: u64, user: &str) -> Self {
        let program =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("target/release/psi-agent-simulation");
        let (vms, seed) = (VMS.to_string(), seed.to_string());
        let output = Command::new(&program)
            .args(["generate", "--vms", &vms, "--seed", &seed])
            .output()
            .unwrap_or_else(|error| {
                panic!("{}: {error}: tests/simulation/real builds it", program.display())
            });
        assert!(output.status.success());
        let rows = String::from_utf8(output.stdout).unwrap();
        let (header, rows) = rows.split_once('\n').unwrap();
        let mut trace = format!("{header}\n");
        let mut shares: BTreeMap<String, BTreeMap<u64, f64>> = BTreeMap::new();
        for row in rows.lines() {
            let fields: Vec<&str> = row.split(',').collect();
            let [vm, _, memory, minute, share] = fields[..] else { panic!("{row}") };
            trace += &format!("{vm},1,{memory},{minute},{share}\n");
            let of_vm = shares.entry(vm.to_owned()).or_default();
            of_vm.insert(minute.parse().unwrap(), share.parse().unwrap());
        }
        let folder = Folder::new(&format!("benefit-{seed}-{user}"));
        folder.write("demand.csv", &trace);
        let from: u64 = FROM_MINUTE.parse().unwrap();
        let minutes = MEASURED.as_secs() / 60;
        let wanted = shares.into_iter().map(|(vm, shares)| {
            let share = |minute| *shares.range(..=minute).next_back().unwrap().1;
            let sum: f64 = (from..from + minutes).map(share).sum();
            (vm, sum * 60.0 / NODES.len() as f64)
        });
        let wanted = wanted.collect();
        Self { folder, wanted, program }
    }

    /// Whether one node has much too little CPU, and all of them together enough.
    pub(super) fn can_be_shared_better(&self) -> bool {
        let of_node = |node| self.wanted.values().skip(node).step_by(NODES.len()).sum::<f64>();
        let cpu = MEASURED.as_secs_f64() / NODES.len() as f64;
        let most = (0..NODES.len()).map(of_node).fold(0.0, f64::max);
        most >= 1.2 * cpu && self.wanted.values().sum::<f64>() <= 2.7 * cpu
    }

    /// The command of a VM's work on a node, and where it counts.
    pub(super) fn work(
        &self,
        vm: &str,
        node: usize,
        start: SystemTime,
        part: usize,
    ) -> (String, PathBuf) {
        let counter = self.folder.join(format!("{vm}-{part}"));
        let start = start.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
        let command = format!(
            "{} load --trace {} --vm {vm} --node {node} --nodes {} --from-minute {FROM_MINUTE} \
             --start-ms {start} --counter {}",
            self.program.display(),
            self.folder.path("demand.csv"),
            NODES.len(),
            counter.display(),
        );
        (command, counter)
    }
}
