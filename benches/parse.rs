//! Two of the agent's parsers beside those of the crate procfs, on this host's files.
//! Run with `cargo bench --bench parse`.
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark fails at the first error")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use procfs::{CpuPressure, FromBufRead, VmStat};
use psi_agent::kernel::node_text::parse_vmstat;
use psi_agent::kernel::pressure::parse_pressure;

fn pressure(criterion: &mut Criterion) {
    let text = std::fs::read("/proc/pressure/cpu").unwrap();
    let mut group = criterion.benchmark_group("pressure");
    group.bench_function("psi-agent", |bencher| {
        bencher.iter(|| parse_pressure(black_box(&text)).unwrap());
    });
    group.bench_function("procfs", |bencher| {
        bencher.iter(|| CpuPressure::from_buf_read(black_box(&text[..])).unwrap());
    });
    group.finish();
}

fn vmstat(criterion: &mut Criterion) {
    let text = std::fs::read("/proc/vmstat").unwrap();
    let mut group = criterion.benchmark_group("vmstat");
    group.bench_function("psi-agent", |bencher| {
        bencher.iter(|| parse_vmstat(black_box(&text)).unwrap());
    });
    group.bench_function("procfs", |bencher| {
        bencher.iter(|| VmStat::from_buf_read(black_box(&text[..])).unwrap());
    });
    group.finish();
}

criterion_group!(benches, pressure, vmstat);
criterion_main!(benches);
