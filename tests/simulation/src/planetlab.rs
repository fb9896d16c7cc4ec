//! Demand of PlanetLab's VMs: a folder of a day has a file for each VM, with its use of CPU time in percent, a
//! line for every five minutes. It has no sizes: VMs get those of the generated ones.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use crate::population::vcpus_and_memory_mib;
use crate::random::Random;
use crate::trace::{Trace, Vm};

/// Minutes for which a line holds.
const LINE: usize = 5;

/// The demand of a day, with sizes by the seed.
pub fn read(folder: &Path, seed: u64) -> anyhow::Result<Trace> {
    let files = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut paths: Vec<PathBuf> =
        files.map(|file| file.map(|file| file.path())).collect::<Result<_, _>>()?;
    paths.retain(|path| path.is_file());
    paths.sort();
    ensure!(!paths.is_empty(), "{}: no files of VMs", folder.display());
    let mut vms = Vec::new();
    for (number, path) in paths.iter().enumerate() {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let shares = shares(&text).with_context(|| path.display().to_string())?;
        let (vcpus, memory_mib) = vcpus_and_memory_mib(&mut Random::new(seed, number as u64));
        vms.push(Vm { name: format!("v{number}"), vcpus, memory_mib, shares });
    }
    let minutes = vms.iter().map(|vm| vm.shares.len()).max().unwrap_or(0);
    vms.iter_mut().for_each(|vm| vm.shares.resize(minutes, None));
    Ok(Trace { vms, minutes })
}

fn shares(text: &str) -> anyhow::Result<Vec<Option<f32>>> {
    let mut shares = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let percent: f32 =
            line.trim().parse().with_context(|| format!("line {}: {line}", number + 1))?;
        ensure!(
            (0.0..=100.0).contains(&percent),
            "line {}: {percent} is not between 0 and 100 percent",
            number + 1
        );
        shares.resize(shares.len() + LINE, Some(percent / 100.0));
    }
    ensure!(!shares.is_empty(), "no lines");
    Ok(shares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_five_minutes_and_each_file_a_vm() {
        let folder = std::env::temp_dir().join(format!("planetlab-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("a_host_slice"), "10\n100\n").unwrap();
        fs::write(folder.join("b_host_slice"), "0\r\n").unwrap();
        let trace = read(&folder, 1).unwrap();
        assert_eq!((trace.minutes, trace.vms.len()), (10, 2));
        assert_eq!(trace.vms[0].shares, [[Some(0.1); 5], [Some(1.0); 5]].concat());
        assert_eq!(trace.vms[1].name, "v1");
        assert_eq!(trace.vms[1].shares, [[Some(0.0); 5], [None; 5]].concat());
        assert_eq!(read(&folder, 1).unwrap(), trace);
        fs::write(folder.join("c"), "101").unwrap();
        let error = format!("{:#}", read(&folder, 1).unwrap_err());
        assert!(error.ends_with("/c: line 1: 101 is not between 0 and 100 percent"), "{error}");
        fs::remove_dir_all(&folder).unwrap();
        assert!(read(&folder, 1).is_err());
    }
}
