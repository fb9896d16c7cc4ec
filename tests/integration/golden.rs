//! One folder for each situation: a fake node's files, the flags, and the metrics expected of
//! them. `UPDATE_GOLDEN=1 cargo test golden` writes what the agent says now; read the difference.

use std::fs::{self, File, FileTimes};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::support::agent::BINARY;

/// When every fake cgroup was made: start times are read from modification times.
const MADE_AT: Duration = Duration::from_secs(1_700_000_123);

fn cases() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut cases: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
    cases.sort();
    cases
}

/// A copy whose files all have one age.
fn copy_with_fixed_times(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_with_fixed_times(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).unwrap();
        }
    }
    let times = FileTimes::new().set_modified(SystemTime::UNIX_EPOCH + MADE_AT);
    File::open(to).unwrap().set_times(times).unwrap();
}

/// What the agent exports of a case, without what it says of itself.
fn exposition_of(case: &Path) -> String {
    let name = case.file_name().unwrap().to_str().unwrap();
    let copy = std::env::temp_dir().join(format!("psi-agent-{}-{name}", std::process::id()));
    copy_with_fixed_times(case, &copy);
    let unified = copy.join("sys/fs/cgroup/unified");
    let root = if unified.exists() { unified } else { copy.join("sys/fs/cgroup") };
    let description = fs::read_to_string(case.join("case.txt")).unwrap();
    let output = Command::new(BINARY)
        .arg("once")
        .args(description.lines().last().unwrap().split(' '))
        .arg("--proc-root")
        .arg(copy.join("proc"))
        .arg("--cgroup-root")
        .arg(root)
        .args(case.join("pods.json").exists().then_some("--pods-file"))
        .args(Some(case.join("pods.json")).filter(|pods| pods.exists()))
        .output()
        .unwrap();
    fs::remove_dir_all(&copy).unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let own = text.find("# HELP psi_agent_").expect("score and own metrics come last");
    text[..own].to_owned()
}

#[test]
fn golden_cases_read_as_expected() {
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let cases = cases();
    assert!(cases.len() >= 13, "cases went missing: {cases:?}");
    let running: Vec<_> = cases
        .into_iter()
        .map(|case| std::thread::spawn(move || (exposition_of(&case), case)))
        .collect();
    for case in running {
        let (actual, case) = case.join().unwrap();
        let golden = case.join("expected.prom");
        if update {
            fs::write(&golden, &actual).unwrap();
            continue;
        }
        let expected = fs::read_to_string(&golden).unwrap_or_default();
        assert!(actual == expected, "{}:\n{}", case.display(), difference(&expected, &actual));
        assert!(actual.lines().count() < 150, "{} is too long to review", golden.display());
    }
}

/// Lines that only one of the two has.
fn difference(expected: &str, actual: &str) -> String {
    let missing = expected.lines().filter(|line| !actual.lines().any(|other| other == *line));
    let extra = actual.lines().filter(|line| !expected.lines().any(|other| other == *line));
    let missing = missing.map(|line| format!("- {line}\n"));
    missing.chain(extra.map(|line| format!("+ {line}\n"))).collect()
}
