//! The recorded nodes of `tests/cases`, as flags: an agent with these reads nothing of this host.

use super::agent::Agent;

/// Flags for the roots of a case, and for its pods where it has a file of them.
pub(crate) fn flags_of_case(case: &str) -> Vec<String> {
    let folder = format!("{}/tests/cases/{case}", env!("CARGO_MANIFEST_DIR"));
    let mut flags =
        vec![format!("--proc-root={folder}/proc"), format!("--cgroup-root={folder}/sys/fs/cgroup")];
    let pods = format!("{folder}/pods.json");
    if std::path::Path::new(&pods).exists() {
        flags.push(format!("--pods-file={pods}"));
    }
    flags
}

/// Flags of a node with one VM.
pub(crate) fn flags_of_one_vm() -> Vec<String> {
    flags_of_case("virt-launcher")
}

/// Starts an agent on a case, with more flags.
pub(crate) fn start_on_case(case: &str, more: &[String]) -> Agent {
    let flags = [flags_of_case(case), more.to_vec()].concat();
    Agent::start(&flags.iter().map(String::as_str).collect::<Vec<_>>())
}
