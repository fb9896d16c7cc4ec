//! `psi-agent-simulation`: see docs/benefit.md.

use std::fs::{self, File};
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::{Parser, ValueEnum};
use psi_agent_simulation::arm::{Arm, Overrides};
use psi_agent_simulation::consumers::planner::Limits;
use psi_agent_simulation::load::{self, Load};
use psi_agent_simulation::population::Population;
use psi_agent_simulation::report::{Row, csv, csv_of_moves, csv_of_seeds, goals_text, table};
use psi_agent_simulation::suite::{Nodes, SCENARIOS, Scenario, run_all};
use psi_agent_simulation::trace::Trace;
use psi_agent_simulation::{extract, lab, planetlab, plot};

/// Simulates clusters of VMs with rebalancers, in virtual time
#[derive(Parser)]
enum Command {
    /// Runs the scenarios of docs/benefit.md, prints their tables and draws their pictures
    Suite {
        /// A scenario; can be repeated. Default: all
        #[arg(long, value_parser = SCENARIOS.map(|one| one.name))]
        scenario: Vec<String>,
        /// VMs of each cluster; can be repeated
        #[arg(long, default_values_t = [300, 3000])]
        vms: Vec<usize>,
        /// Seeds from 1 on, each with other demand and another placement
        #[arg(long, default_value_t = 10)]
        seeds: u64,
        /// Directory for the pictures
        #[arg(long)]
        pictures: Option<PathBuf>,
        /// Directory for the tables as CSV files
        #[arg(long)]
        tables: Option<PathBuf>,
        #[command(flatten)]
        planner: Limits,
    },
    /// Runs one cluster, with demand from a file or generated
    Run {
        /// CSV file of demand, with the header vm,vcpus,memory_mib,minute,cpu_share
        #[arg(long, conflicts_with_all = ["population", "vms", "days", "lifetime_h"])]
        trace: Option<PathBuf>,
        /// Kind of generated demand
        #[arg(long, default_value = "mixed")]
        population: Population,
        /// VMs with generated demand
        #[arg(long, default_value_t = 300)]
        vms: usize,
        /// Days of generated demand
        #[arg(long, default_value_t = 1)]
        days: usize,
        /// Mean lifetime of VMs with generated demand, in hours; others take their place. Default: all stay
        #[arg(long)]
        lifetime_h: Option<f64>,
        /// Seeds from 1 on. With a file, a seed decides only the placement and random choices.
        #[arg(long, default_value_t = 10)]
        seeds: u64,
        #[command(flatten)]
        nodes: Nodes,
        #[command(flatten)]
        overrides: Overrides,
        /// Rebalancers to run; default: all
        #[arg(long = "arm")]
        arms: Vec<Arm>,
        /// File for a picture
        #[arg(long)]
        picture: Option<PathBuf>,
        /// CSV file for the outcome of each seed
        #[arg(long)]
        each_seed: Option<PathBuf>,
        /// CSV file for each move, and what it changed
        #[arg(long)]
        each_move: Option<PathBuf>,
    },
    /// Writes generated demand as CSV to stdout
    Generate {
        #[arg(long, default_value = "mixed")]
        population: Population,
        #[arg(long, default_value_t = 300)]
        vms: usize,
        #[arg(long, default_value_t = 1)]
        days: usize,
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Writes demand of other sources as CSV to stdout
    Convert {
        source: Source,
        /// A day's folder, with a file for each VM
        folder: PathBuf,
        /// Seed of the sizes of VMs, which the source does not have
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Runs the demand of one VM as a real load; tests/integration/long/benefit.rs uses it
    Load {
        /// CSV file of demand
        #[arg(long)]
        trace: PathBuf,
        /// The VM's name in it
        #[arg(long)]
        vm: String,
        #[command(flatten)]
        load: Load,
    },
    /// Compares the model of a node with the lab's measurements; exit 1 if an error is above 0.05
    Lab,
    /// Makes tests/simulation/lab.csv, on stdout, of records of tests/lab/run
    Extract {
        /// Files that tests/lab/run --records wrote
        records: Vec<PathBuf>,
    },
}

/// Format of the demand.
#[derive(Clone, Copy, ValueEnum)]
enum Source {
    /// Percent of CPU time every five minutes, as github.com/beloglazov/planetlab-workload-traces has it
    Planetlab,
}

fn main() -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match Command::parse() {
        Command::Suite { scenario, vms, seeds, pictures, tables, planner } => {
            let overrides = Overrides { planner, ..Overrides::default() };
            let is_asked = |one: &&Scenario| {
                scenario.is_empty() || scenario.iter().any(|name| *name == one.name)
            };
            let scenarios = SCENARIOS.iter().filter(is_asked);
            suite(scenarios, &vms, seeds, overrides, pictures, tables, &mut out)
        }
        Command::Run {
            trace,
            population,
            vms,
            days,
            lifetime_h,
            seeds,
            nodes,
            overrides,
            arms,
            picture,
            each_seed,
            each_move,
        } => {
            let read = trace.as_deref().map(read).transpose()?;
            let trace_of = |seed| match &read {
                Some(trace) => trace.clone(),
                None => population.generate(vms, days * 1440, lifetime_h, seed),
            };
            let arms = if arms.is_empty() { Arm::value_variants().to_vec() } else { arms };
            let rows = run_all(&arms, seeds, &nodes, overrides, trace_of)?;
            write!(out, "{}", table(&rows))?;
            if let Some(path) = picture {
                draw(&path, "Simulated rebalancers", &rows)?;
            }
            let files = [(each_seed, csv_of_seeds(&rows)), (each_move, csv_of_moves(&rows))];
            for (path, text) in files {
                if let Some(path) = path {
                    fs::write(&path, text).with_context(|| path.display().to_string())?;
                }
            }
            Ok(())
        }
        Command::Generate { population, vms, days, seed } => {
            Ok(population.generate(vms, days * 1440, None, seed).write(io::BufWriter::new(out))?)
        }
        Command::Convert { source: Source::Planetlab, folder, seed } => {
            Ok(planetlab::read(&folder, seed)?.write(io::BufWriter::new(out))?)
        }
        Command::Load { trace, vm, load } => {
            let mut vms = read(&trace)?.vms.into_iter();
            let vm = vms.find(|one| one.name == vm).with_context(|| format!("no VM {vm}"))?;
            load::run(vm, load)
        }
        Command::Lab => {
            let compared = lab::compare(&lab::read(lab::RECORDED)?);
            write!(out, "{}", lab::table(&compared)?)?;
            for kernel in lab::kernels(&compared) {
                let error = lab::contended_errors(&compared, kernel).node;
                ensure!(error <= 0.05, "Linux {kernel}: the mean error is {error:.3}");
            }
            Ok(())
        }
        Command::Extract { records } => {
            extract::header(&mut out)?;
            for path in records {
                let file = File::open(&path).with_context(|| path.display().to_string())?;
                extract::extract(BufReader::new(file), &mut out)?;
            }
            Ok(())
        }
    }
}

fn read(path: &Path) -> anyhow::Result<Trace> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    Trace::read(BufReader::new(file)).with_context(|| path.display().to_string())
}

fn suite<'a>(
    scenarios: impl Iterator<Item = &'a Scenario>,
    vms: &[usize],
    seeds: u64,
    overrides: Overrides,
    pictures: Option<PathBuf>,
    tables: Option<PathBuf>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    for scenario in scenarios {
        for &vms in vms {
            let (overcommit, throttled) = (scenario.overcommit, scenario.throttled);
            let nodes = Nodes { node_cpus: vec![32], node_memory_gib: 768, overcommit, throttled };
            let trace_of = |seed| scenario.population.generate(vms, 1440, None, seed);
            let rows = run_all(Arm::value_variants(), seeds, &nodes, overrides, trace_of)?;
            let title = format!("{}, {vms} VMs: {}", scenario.name, scenario.about);
            writeln!(out, "### {title}\n\n{}\n{}", table(&rows), goals_text(scenario.goal, &rows))?;
            out.flush()?;
            if let Some(directory) = &pictures {
                let file = format!("benefit-{}-{vms}.svg", scenario.name);
                draw(&directory.join(file), &title, &rows)?;
            }
            if let Some(directory) = &tables {
                let path = directory.join(format!("{}-{vms}.csv", scenario.name));
                fs::write(&path, csv(&rows)).with_context(|| path.display().to_string())?;
            }
        }
    }
    Ok(())
}

fn draw(path: &Path, title: &str, rows: &[Row]) -> anyhow::Result<()> {
    fs::write(path, plot::svg(title, rows)).with_context(|| path.display().to_string())
}
