//! CPU time and allocations to render 10,002 series (1,667 cgroups, six pressure families, six
//! labels), beside a collector of the crate `prometheus` for the same series.
//! Run with `cargo bench --bench render`.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a benchmark fails at the first error"
)]

use std::collections::HashSet;
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{Encoder, Registry, TextEncoder};
use psi_agent::clock::Moment;
use psi_agent::export::exposition::Exposition;
use psi_agent::export::families::FamilyGroup;
use psi_agent::kernel::cgroup_tree::{Cgroup, CgroupId};
use psi_agent::kernel::pressure::Pressure;
use psi_agent::kernel::resource::PerResource;
use psi_agent::sample::{CgroupSample, Detail, PassReport, ScrapeSample};
use psi_agent::waiting::node::NodeReadings;
use psi_agent::waiting::series::{PressureReadings, Reading};
use support::{cpu_time_of, judge, take_turns};

mod support;

const CGROUPS: u64 = 1667;
const REPEATS: u32 = 20;
/// Budget as a share of the crate's time: 0.3 ms on the machine of benches/README.md, where it takes 7.9 ms.
const SHARE: f64 = 0.3 / 7.9;

fn main() -> ExitCode {
    let sample = Arc::new(sample());
    let agent = || render(&sample);

    let registry = Registry::new();
    registry.register(Box::new(Pressure6(Arc::clone(&sample)))).unwrap();
    let mut body = Vec::new();
    let mut crates = || {
        body.clear();
        TextEncoder::new().encode(&registry.gather(), &mut body).unwrap();
        black_box(&body).len()
    };

    println!("Rendering {} series, {} and {} bytes:", CGROUPS * 6, agent(), crates());
    let allocations = allocation_counter::measure(|| _ = agent()).count_total;
    let of_crate = allocation_counter::measure(|| _ = crates()).count_total;
    println!("allocations: agent {allocations}, prometheus {of_crate}");
    let turns = take_turns(
        REPEATS,
        [
            ("agent", &mut || cpu_time_of(|| _ = agent())),
            ("prometheus, gather + encode", &mut || cpu_time_of(|| _ = crates())),
        ],
    );
    #[allow(clippy::cast_precision_loss, reason = "a few thousand at most")]
    let per_series = allocations as f64 / (CGROUPS * 6) as f64;
    judge(&[
        ("agent / prometheus", turns.times(0, 1), SHARE),
        // One allocation for each chunk of 64 KiB, which is 200 series.
        ("allocations a series", per_series, 0.01),
    ])
}

/// One response to a scrape, as in the HTTP server: with kept labels, and each chunk in a buffer of
/// its own.
fn render(sample: &Arc<ScrapeSample>) -> usize {
    let exposition = Exposition::new(Arc::clone(sample), &[FamilyGroup::Pressure]);
    exposition.map(|chunk| black_box(chunk).len()).sum()
}

fn sample() -> ScrapeSample {
    let moment = Moment { at: Instant::now(), unix_ms: 0 };
    let cgroups = (0..CGROUPS).map(|number| {
        let path = format!(
            "/kubepods.slice/kubepods-burstable.slice/\
             kubepods-burstable-pod{number:08}_0000_4000_8000_000000000000.slice/\
             cri-containerd-{number:064}.scope"
        );
        let id = CgroupId(number + 2);
        let cgroup = Cgroup::new(id, path, None);
        // Totals of one or two days, with different numbers of digits.
        let total = |factor: u64| Some(number * number * factor + 17);
        let reading = |factor| {
            let value = Pressure { some_us: total(factor), full_us: total(factor / 2) };
            Some(Reading { at: moment.at, value })
        };
        let pressure =
            PressureReadings { cpu: reading(4999), memory: reading(23), io: reading(331) };
        let (cgroup, labels) = (Arc::new(cgroup), Arc::default());
        let rates = PerResource::default();
        CgroupSample { cgroup, workload: None, labels, pressure, rates, stats: None }
    });
    ScrapeSample {
        moment,
        detail: Detail::Exported,
        node: NodeReadings::default(),
        window: None,
        beside: Vec::new(),
        workloads: HashSet::new(),
        cgroups: cgroups.collect(),
        report: PassReport::default(),
    }
}

/// The same six families by the crate. Its counters cannot be set to a total, so the collector
/// creates the metrics at each collection.
struct Pressure6(Arc<ScrapeSample>);

impl Collector for Pressure6 {
    fn desc(&self) -> Vec<&Desc> {
        Vec::new()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        type Total = fn(&PressureReadings) -> Option<u64>;
        let families: [(&str, Total); 6] = [
            ("container_pressure_cpu_stalled_seconds_total", |all| all.cpu?.value.full_us),
            ("container_pressure_cpu_waiting_seconds_total", |all| all.cpu?.value.some_us),
            ("container_pressure_io_stalled_seconds_total", |all| all.io?.value.full_us),
            ("container_pressure_io_waiting_seconds_total", |all| all.io?.value.some_us),
            ("container_pressure_memory_stalled_seconds_total", |all| all.memory?.value.full_us),
            ("container_pressure_memory_waiting_seconds_total", |all| all.memory?.value.some_us),
        ];
        let family = |(name, total): (&str, Total)| {
            let metrics = self.0.cgroups.iter().filter_map(|member| {
                let total_us = total(&member.pressure)?;
                Some(metric(&member.cgroup.path, total_us))
            });
            let mut family = MetricFamily::default();
            family.set_name(name.to_owned());
            family.set_help("Total time in which tasks waited.".to_owned());
            family.set_field_type(MetricType::COUNTER);
            family.set_metric(metrics.collect());
            family
        };
        families.into_iter().map(family).collect()
    }
}

#[allow(clippy::cast_precision_loss, reason = "the crate's counters are floats")]
fn metric(path: &str, total_us: u64) -> Metric {
    let names = ["container", "id", "image", "name", "namespace", "pod"];
    let labels = names.map(|name| {
        let mut pair = LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value(if name == "id" { path.to_owned() } else { String::new() });
        pair
    });
    let mut counter = Counter::default();
    counter.set_value(total_us as f64 / 1e6);
    let mut metric = Metric::from_label(labels.into());
    metric.set_counter(counter);
    metric
}
