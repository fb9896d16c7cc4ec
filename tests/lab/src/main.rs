//! The lab: scenarios of load on a real kernel, the agent beside them, and the tables made of both.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line program")]

mod agent;
mod aio;
mod alone;
mod arrivals;
mod awake;
mod clock;
mod compare;
mod counters;
mod disk_load;
mod disks;
mod guest;
mod headroom;
mod host;
mod judging;
mod kvm;
mod kvm_load;
mod kvm_run;
mod kvm_table;
mod kvm_truth;
mod load;
mod machine;
mod matrix;
mod memory_load;
mod node;
mod process;
mod progress;
mod rates;
mod reactions;
mod record;
mod relief;
mod rules;
mod scenario;
mod table;
mod taskstats;
mod tree;
mod truth;
mod waits;
mod waits_rules;
mod waits_table;

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Parser, Subcommand};

use judging::Verdict;
use machine::Machine;
use matrix::{keep, run_matrix};
use record::Record;
use scenario::Scenario;

#[derive(Parser)]
#[command(about = "Scenarios of load on a real kernel, with the agent beside them.")]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Boot a kernel, run scenarios, print the tables; exit 1 where a bound is missed.
    Matrix {
        /// The kernel's image.
        #[arg(long)]
        kernel: PathBuf,
        /// The agent's static binary.
        #[arg(long)]
        agent: PathBuf,
        /// The folder of scenarios.
        #[arg(long)]
        scenarios: PathBuf,
        /// Boot with one CPU and bring up the others afterwards, as Linux 6.1 needs in virtual time.
        #[arg(long)]
        late_cpus: bool,
        /// Where to keep the records, one a line.
        #[arg(long)]
        records: Option<PathBuf>,
        /// What `prepare-guests` collected, for scenarios with KVM guests.
        #[arg(long)]
        guests: Option<PathBuf>,
        /// Which scenarios: all of the folder without any.
        names: Vec<String>,
    },
    /// Run the contended scenarios of records again, with all VMs and without one VM of each kind.
    Without(RerunArgs),
    /// Run the calm scenarios of records again, alone and with busy VMs added: as many as the agent's headroom,
    /// rounded down, and one more.
    With(RerunArgs),
    /// Print the answers of the agent beside one scenario, a line each.
    Answers {
        /// The kernel's image.
        #[arg(long)]
        kernel: PathBuf,
        /// The agent's static binary.
        #[arg(long)]
        agent: PathBuf,
        scenario: PathBuf,
    },
    /// Compare the relief that agents predicted with what leaving a VM out changed; exit 1 where a bound is
    /// missed.
    Relief {
        /// What `without` kept.
        records: PathBuf,
    },
    /// Print what VMs waited for after one more had arrived, beside the demand that agents saw.
    Arrivals {
        /// What `without` kept.
        records: PathBuf,
    },
    /// Compare the headroom of agents with the contention that so many busy VMs cause; exit 1 where a bound is
    /// missed.
    Headroom {
        /// What `with` kept.
        records: PathBuf,
    },
    /// Print the tables of records of one kernel.
    Table {
        /// Print how far apart the files are, each of which is one run of the same scenarios.
        #[arg(long)]
        compare: bool,
        /// Write the rows as `cpu-SERIES.csv`, `memory-io-SERIES.csv` and `reactions-SERIES.csv` into this
        /// folder instead of printing them.
        #[arg(long, value_name = "FOLDER", conflicts_with = "compare")]
        csv: Option<PathBuf>,
        #[arg(required = true)]
        records: Vec<PathBuf>,
    },
    /// In the guest: run the scenarios of a folder, write records.
    #[command(hide = true)]
    Guest { scenarios: PathBuf },
    /// In a KVM guest: run its load, as the first process.
    #[command(hide = true)]
    KvmLoad {
        /// As in a scenario, as JSON with apostrophes for quotation marks.
        load: String,
    },
    /// In the guest: run a load in a cgroup, until it is killed.
    #[command(hide = true)]
    Load {
        cgroup: PathBuf,
        /// As in a scenario, as JSON.
        #[arg(long)]
        load: String,
        /// Tells it from the other loads of the node.
        #[arg(long, default_value_t = 0)]
        number: u32,
        /// The judged time, by the monotonic clock, seconds.
        #[arg(long)]
        from: f64,
        #[arg(long)]
        until: f64,
        /// The file for its report.
        #[arg(long)]
        report: Option<PathBuf>,
    },
}

#[derive(Args)]
struct RerunArgs {
    /// The kernel's image.
    #[arg(long)]
    kernel: PathBuf,
    /// The agent's static binary.
    #[arg(long)]
    agent: PathBuf,
    /// As of `matrix`.
    #[arg(long)]
    late_cpus: bool,
    /// Records of `matrix`.
    #[arg(long)]
    base: PathBuf,
    /// Where to keep the records, one a line.
    #[arg(long)]
    records: PathBuf,
}

impl RerunArgs {
    fn machine(&self) -> Machine {
        let Self { kernel, agent, late_cpus, .. } = self;
        Machine {
            kernel: kernel.clone(),
            agent: agent.clone(),
            late_cpus: *late_cpus,
            guests: None,
        }
    }
}

fn main() -> anyhow::Result<()> {
    match CommandLine::parse().command {
        Command::Matrix { kernel, agent, scenarios, late_cpus, records, guests, names } => {
            let machine = Machine { kernel, agent, late_cpus, guests };
            let scenarios = Scenario::read_all(&scenarios, &names)?;
            let (all, failures) = run_matrix(&machine, scenarios, records.as_deref())?;
            let table = print_table(&all, None);
            complain(&failures)?;
            table
        }
        Command::Without(args) => {
            let base = read_records(&args.base)?;
            let contended = base.iter().filter(|record| relief::is_compared(record));
            let scenarios =
                contended.flat_map(|record| record.scenario.with_and_without()).collect();
            let (_, failures) = run_matrix(&args.machine(), scenarios, Some(&args.records))?;
            complain(&failures)
        }
        Command::With(args) => {
            let base = read_records(&args.base)?;
            let calm = base.iter().filter(|record| headroom::is_compared(record));
            let alone = calm.map(|record| record.scenario.long_enough_to_predict()).collect();
            let (mut all, mut failures) = run_matrix(&args.machine(), alone, None)?;
            let with_vms = all.iter().flat_map(headroom::with_vms).collect();
            let (more, more_failures) = run_matrix(&args.machine(), with_vms, None)?;
            all.extend(more);
            failures.extend(more_failures);
            keep(&all, Some(&args.records))?;
            complain(&failures)
        }
        Command::Answers { kernel, agent, scenario } => {
            let machine = Machine { kernel, agent, late_cpus: false, guests: None };
            let (records, failure) = machine.run(&[Scenario::read(&scenario)?])?;
            for answer in records.iter().flat_map(|record| &record.answers) {
                println!("{}", serde_json::to_string(answer)?);
            }
            complain(failure.as_slice())
        }
        Command::Relief { records } => {
            let Verdict { rows, summary, failures } = relief::table(&read_records(&records)?);
            println!("{rows}\n{summary}");
            complain(&failures)
        }
        Command::Arrivals { records } => {
            let Verdict { rows, summary, failures } = arrivals::table(&read_records(&records)?);
            println!("{rows}\n{summary}");
            complain(&failures)
        }
        Command::Headroom { records } => {
            let Verdict { rows, summary, failures } = headroom::table(&read_records(&records)?);
            println!("{rows}\n{summary}");
            complain(&failures)
        }
        Command::Table { compare: false, csv, records } => {
            let all: Vec<Record> = read_all(&records)?.into_iter().flatten().collect();
            print_table(&all, csv.as_deref())
        }
        Command::Table { compare: true, records, .. } => {
            let (text, failures) = compare::table(&read_all(&records)?);
            println!("{text}");
            complain(&failures)
        }
        Command::KvmLoad { load } => {
            kvm_load::work(serde_json::from_str(&load.replace('\'', "\""))?)
        }
        Command::Guest { scenarios } => {
            let records = disks::device("records")?;
            let mut file = OpenOptions::new()
                .write(true)
                .open(&records)
                .with_context(|| records.display().to_string())?;
            guest::run_all(&scenarios, &mut file)
        }
        Command::Load { cgroup, load, number, from, until, report } => {
            let (load, report) = (serde_json::from_str(&load)?, report.as_deref());
            load::work(&cgroup, load, number, (from, until), report)
        }
    }
}

/// Prints the tables of records of one kernel, their rows as CSV or into files of `folder`.
fn print_table(records: &[Record], folder: Option<&Path>) -> anyhow::Result<()> {
    let kernel = records.first().map_or("", |record| &record.kernel);
    println!("Linux {kernel}\n");
    let series: Vec<&str> = kernel.split('.').take(2).collect();
    let (reactions, values): (Vec<&Record>, Vec<&Record>) =
        records.iter().partition(|record| record.scenario.is_long());
    let (guests, values): (Vec<&Record>, Vec<&Record>) =
        values.into_iter().partition(|record| record.scenario.has_guests());
    let (memory_and_io, cpu): (Vec<&Record>, Vec<&Record>) =
        values.into_iter().partition(|record| record.scenario.real_time);
    let mut failures = Vec::new();
    for (name, table, records) in [
        ("cpu", table::table as fn(&[&Record]) -> Verdict, cpu),
        ("memory-io", waits_table::table, memory_and_io),
        ("guests", kvm_table::table, guests),
        ("reactions", reactions::table, reactions),
    ] {
        if records.is_empty() {
            continue;
        }
        let Verdict { rows, summary, failures: more } = table(&records);
        if let Some(folder) = folder {
            let file = folder.join(format!("{name}-{}.csv", series.join(".")));
            fs::write(&file, rows).with_context(|| file.display().to_string())?;
        } else {
            println!("{rows}");
        }
        println!("{summary}");
        failures.extend(more);
    }
    complain(&failures)
}

fn complain(failures: &[String]) -> anyhow::Result<()> {
    for failure in failures {
        eprintln!("failed: {failure}");
    }
    anyhow::ensure!(failures.is_empty(), "{} checks failed", failures.len());
    Ok(())
}

fn read_all(files: &[PathBuf]) -> anyhow::Result<Vec<Vec<Record>>> {
    files.iter().map(|file| read_records(file)).collect()
}

fn read_records(file: &Path) -> anyhow::Result<Vec<Record>> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let lines: Result<_, _> = text.lines().map(serde_json::from_str).collect();
    lines.with_context(|| file.display().to_string())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

    fn read(file: &str) -> String {
        fs::read_to_string(format!("{ROOT}/{file}")).unwrap()
    }

    #[test]
    fn files_of_rows_in_docs_have_the_columns_that_are_written() {
        for (name, header, count) in [
            ("cpu", table::header(), 108),
            ("memory-io", waits_table::HEADER.to_owned(), 27),
            ("reactions", reactions::header(), 5),
        ] {
            for series in ["6.1", "6.12", "7.2"] {
                let file = read(&format!("docs/lab/{name}-{series}.csv"));
                let lines: Vec<&str> = file.lines().collect();
                assert_eq!(lines[0], header);
                assert_eq!(lines.len(), 1 + count, "{name}-{series}");
                let cells = |line: &str| line.split(',').count();
                assert!(lines.iter().all(|line| cells(line) == cells(&header)), "{name}-{series}");
            }
        }
    }

    #[test]
    fn pictures_in_docs_show_the_rows_in_docs() {
        for (program, rows, picture) in [
            ("tests/lab/plot", "cpu-6.12", "lab-6.12"),
            ("tests/lab/plot", "cpu-7.2", "lab-7.2"),
            ("docs/pictures/psi-and-score", "cpu-6.12", "psi-and-score"),
        ] {
            let mut command = Command::new(format!("{ROOT}/{program}"));
            let output = command.arg(format!("{ROOT}/docs/lab/{rows}.csv")).output().unwrap();
            let drawn = String::from_utf8(output.stdout).unwrap();
            assert!(drawn == read(&format!("docs/pictures/{picture}.svg")), "draw {picture} again");
        }
    }
}
