//! Six hours of series of 60 nodes and 2,000 VMs, in OpenMetrics text with timestamps. Names and
//! labels are those that agents export. A few nodes have contention.

use std::fmt::Display;
use std::io::{self, Write};

use psi_agent::score::basis;
use psi_agent::waiting::CpuSource;

pub(crate) const NODES: u64 = 60;
pub(crate) const VMS: u64 = 2_000;
pub(crate) const SECONDS: i64 = 6 * 3_600;
/// The node and the VM that the dashboard of one VM shows. The VM moves there from another node.
pub(crate) const NODE: &str = "node-42";
pub(crate) const VM: (&str, &str) = ("shop", "db");

const STEP: u32 = 60;
/// Families that no query reads over six hours for all VMs: only their end is written.
const RECENT: i64 = 600;
const CONTENDED: u64 = 42;
const MOVED_FROM: u64 = 7;
/// A throttled container keeps this node's PSI high, while VMs do not wait because of the node.
const THROTTLED: u64 = 17;
const DOWN: u64 = 51;
const NAMESPACES: [&str; 8] =
    ["shop", "billing", "search", "mail", "analytics", "ci", "identity", "media"];
const APPLICATIONS: [&str; 5] = ["db", "web", "cache", "worker", "build"];

/// Writes the series that end at this Unix time.
pub(crate) struct SimulatedCluster<W: Write> {
    out: W,
    end: i64,
}

struct Vm {
    node: u64,
    namespace: String,
    name: String,
    /// What it waits of its node's contention, in relation to the others.
    share: f64,
}

impl<W: Write> SimulatedCluster<W> {
    pub(crate) fn new(out: W, end: i64) -> Self {
        Self { out, end }
    }

    pub(crate) fn write(&mut self) -> io::Result<()> {
        for node in 0..NODES {
            self.node(node)?;
        }
        for number in 0..VMS {
            let start = if number == CONTENDED { MOVE } else { -SECONDS };
            self.vm(&vm(number), start..=0)?;
        }
        self.before_the_move()?;
        self.moves()?;
        self.others()?;
        writeln!(self.out, "# EOF")
    }

    /// One series: `value` of the seconds before the end, every minute.
    fn series(
        &mut self,
        name: &str,
        labels: &dyn Display,
        times: std::ops::RangeInclusive<i64>,
        value: impl Fn(i64) -> f64,
    ) -> io::Result<()> {
        for at in times.step_by(usize::try_from(STEP).unwrap()) {
            writeln!(self.out, "{name}{{{labels}}} {:.5} {}", value(at), self.end + at)?;
        }
        Ok(())
    }

    fn node(&mut self, node: u64) -> io::Result<()> {
        let all = -SECONDS..=if node == DOWN { -1_200 } else { 0 };
        let own = of_node("psi-agent", node);
        self.series("up", &own, -SECONDS..=0, |at| f64::from(u8::from(all.contains(&at))))?;
        let basis = format!(",basis=\"{}\"", basis(CpuSource::RunDelay));
        for (name, labels, value) in [
            ("psi_agent_build_info", concat!(",version=\"", env!("CARGO_PKG_VERSION"), "\""), 1.0),
            ("psi_agent_score_info", &basis, 1.0),
            ("psi_agent_level_threshold", ",level=\"medium\"", 0.1),
            ("psi_agent_level_threshold", ",level=\"high\"", 0.3),
            ("psi_agent_heartbeat_interval_seconds", "", 300.0),
        ] {
            self.series(name, &format!("{own}{labels}"), all.clone(), |_| value)?;
        }
        let cpu = move |at| contention(node, at);
        let memory =
            move |at| if node == 23 { 0.14 * wave(230, at) } else { 0.01 * wave(node, at) };
        self.series("psi_agent_node_score_ratio", &own, all.clone(), |at| cpu(at).max(memory(at)))?;
        for resource in ["cpu", "memory", "io"] {
            let labels = format!("{own},resource=\"{resource}\"");
            self.series(
                "psi_agent_node_contention_ratio",
                &labels,
                all.clone(),
                |at| match resource {
                    "cpu" => cpu(at),
                    "memory" => memory(at),
                    _ => 0.04 * wave(node + 300, at),
                },
            )?;
        }
        for (resource, seed) in [("cpu", 400), ("memory", 500)] {
            let labels = format!("{own},resource=\"{resource}\"");
            self.series("psi_agent_node_utilization_ratio", &labels, all.clone(), |at| {
                let base = 0.45 + 0.25 * wave(node + seed, at);
                match (resource, node) {
                    // Above the common rule's 70 %.
                    ("cpu", THROTTLED) => 0.74 + 0.04 * wave(node, at),
                    ("cpu", _) => (base + cpu(at)).min(0.98),
                    _ => base,
                }
            })?;
        }
        self.series("psi_agent_node_steal_ratio", &own, all.clone(), |_| 0.0)?;
        self.series("psi_agent_node_headroom_cpus", &own, all.clone(), |at| {
            if cpu(at) < 0.1 { (12.0 * wave(node + 600, at)).floor() } else { 0.0 }
        })?;
        self.waiting(node, &own, all.clone())?;
        self.publishing(node, &own, all)
    }

    /// Contended VMs and raw pressure of a node.
    fn waiting(
        &mut self,
        node: u64,
        own: &str,
        all: std::ops::RangeInclusive<i64>,
    ) -> io::Result<()> {
        let cpu = move |at| contention(node, at);
        let vms = (VMS / NODES) as f64;
        let population = format!("{own},population=\"vms\"");
        self.series("psi_agent_node_contended", &population, all.clone(), |at| {
            if cpu(at) < 0.05 { 0.0 } else { (vms * cpu(at) * 1.1).round() }
        })?;
        for (resource, least) in [("cpu", 0.04), ("memory", 0.005), ("io", 0.03)] {
            let labels = format!(
                "{own},container=\"\",id=\"/\",image=\"\",name=\"\",namespace=\"\",pod=\"\""
            );
            let name = format!("container_pressure_{resource}_waiting_seconds_total");
            let psi = move |at| match (resource, node) {
                ("cpu", THROTTLED) => 0.77 + 0.04 * wave(node, at),
                ("cpu", _) => (cpu(at) * 1.15 + least * wave(node, at)).min(0.97),
                _ => least * wave(node + 600, at),
            };
            self.counter(&name, &labels, all.clone(), psi)?;
        }
        Ok(())
    }

    /// What an agent reports of itself.
    fn publishing(
        &mut self,
        node: u64,
        own: &str,
        all: std::ops::RangeInclusive<i64>,
    ) -> io::Result<()> {
        let end = self.end as f64;
        self.series("psi_agent_last_publish_timestamp_seconds", &own, all.clone(), |at| {
            let age = if node == 33 { at + 2_400 } else { (at + node as i64 * 7).rem_euclid(290) };
            end + (at - age.max(0)) as f64
        })?;
        let written = format!("{own},result=\"written\"");
        self.counter("psi_agent_publishes_total", &written, all.clone(), |_| 1.0 / 300.0)?;
        for kind in ["refused", "malformed", "failed"] {
            let labels = format!("{own},kind=\"{kind}\"");
            self.series("psi_agent_read_errors_total", &labels, all.clone(), |_| 0.0)?;
        }
        self.counter("process_cpu_seconds_total", &own, all.clone(), |at| {
            0.004 + 0.002 * wave(node, at)
        })?;
        self.series("process_resident_memory_bytes", &own, all, |at| 9e6 + 2e6 * wave(node, at))
    }

    fn vm(&mut self, vm: &Vm, all: std::ops::RangeInclusive<i64>) -> io::Result<()> {
        let end = *all.end();
        let recent =
            if vm.node == CONTENDED || vm.node == MOVED_FROM { *all.start() } else { -RECENT };
        let recent = recent..=end;
        let own = of_node("psi-agent", vm.node);
        let (namespace, name, seed) = (&vm.namespace, &vm.name, vm.share.to_bits());
        let of_vm = format!("{own},namespace=\"{namespace}\",name=\"{name}\"");
        let pod = format!("virt-launcher-{name}-{:05x}", vm.node * 7_919 + seed % 7_000);
        let info = format!("{of_vm},pod=\"{pod}\",uid=\"{seed:016x}\"");
        let cpu = |at| (contention(vm.node, at) * vm.share).min(0.95);
        self.series("psi_agent_vmi_info", &info, all.clone(), |_| 1.0)?;
        self.series("psi_agent_vmi_wait_ratio", &of_vm, all.clone(), |at| cpu(at) * 0.6)?;
        for resource in ["cpu", "memory", "io"] {
            let labels = format!("{of_vm},resource=\"{resource}\"");
            let times = if resource == "io" { recent.clone() } else { all.clone() };
            self.series("psi_agent_vmi_contention_ratio", &labels, times, |at| match resource {
                "cpu" => cpu(at),
                _ => 0.02 * wave(seed, at),
            })?;
            for (cause, part) in [("node", 1.0), ("own_limit", 0.03)] {
                let labels = format!("{labels},cause=\"{cause}\"");
                let waits = |at| part * if resource == "cpu" { cpu(at) * 2.4 } else { 0.01 };
                self.counter("psi_agent_vmi_wait_seconds_total", &labels, recent.clone(), waits)?;
            }
        }
        let container = format!(
            "container=\"compute\",id=\"/kubepods.slice/{seed:016x}\",image=\"virt-launcher\",\
             name=\"{seed:016x}\",namespace=\"{namespace}\",pod=\"{pod}\""
        );
        let from_agent = format!("{own},{container}");
        for (family, scale) in [
            ("cpu_waiting", 1.0),
            ("cpu_stalled", 0.2),
            ("memory_waiting", 0.02),
            ("memory_stalled", 0.01),
            ("io_waiting", 0.05),
            ("io_stalled", 0.03),
        ] {
            let name = format!("container_pressure_{family}_seconds_total");
            self.counter(&name, &from_agent, recent.clone(), |at| {
                (cpu(at) + 0.05).min(0.97) * scale
            })?;
        }
        self.kubelet(vm, &container, recent)
    }

    fn kubelet(
        &mut self,
        vm: &Vm,
        container: &str,
        times: std::ops::RangeInclusive<i64>,
    ) -> io::Result<()> {
        let own = format!("{},{container}", of_node("kubelet", vm.node));
        let seed = vm.share.to_bits();
        for (name, value) in [
            ("container_spec_cpu_quota", 400_000.0),
            ("container_spec_cpu_period", 100_000.0),
            ("container_spec_memory_limit_bytes", 4.5e9),
        ] {
            self.series(name, &own, times.clone(), |_| value)?;
        }
        self.series("container_memory_working_set_bytes", &own, times.clone(), |at| {
            3.1e9 + 6e8 * wave(seed + 1, at)
        })?;
        for (name, scale) in [
            ("container_cpu_usage_seconds_total", 2.2),
            ("container_cpu_cfs_throttled_seconds_total", 0.004),
            ("container_fs_reads_bytes_total", 2e6),
            ("container_fs_writes_bytes_total", 5e6),
        ] {
            self.counter(name, &own, times.clone(), |at| scale * wave(seed + 2, at))?;
        }
        let console = own.replace("\"compute\"", "\"guest-console-log\"");
        let throttled = if vm.node == THROTTLED { 0.7 * vm.share } else { 0.02 };
        self.counter("container_cpu_cfs_throttled_seconds_total", &console, times, |_| throttled)
    }

    /// The VM that moved: on its first node, with 60 s on both.
    fn before_the_move(&mut self) -> io::Result<()> {
        let earlier = Vm { node: MOVED_FROM, ..vm(CONTENDED) };
        self.vm(&earlier, -SECONDS..=MOVE + 60)
    }

    /// What the recording rules make of the day's moves.
    fn moves(&mut self) -> io::Result<()> {
        let recent = -SECONDS..=0;
        for (verdict, count) in [("helped", 21.0), ("neutral", 6.0), ("hurt", 2.0)] {
            let labels = format!("verdict=\"{verdict}\"");
            self.series("psi_agent:vmi_moves:count1d", &labels, recent.clone(), |_| count)?;
        }
        self.series("psi_agent:moves_pay", &"", recent, |_| 1.0)?;
        for number in 0..29 {
            let Vm { namespace, name, .. } = vm(number);
            let (from, judged) = (random(number) % NODES, MOVE - 600 * (number as i64 % 20));
            let labels = format!(
                "namespace=\"{namespace}\",name=\"{name}\",from=\"node-{from:02}\",to=\"node-{:02}\"",
                (from + 11) % NODES
            );
            let arrived = (self.end + judged - 720) as f64;
            let wait = 0.05 + (random(number + 99) % 20) as f64 / 100.0;
            for (series, value) in [
                ("vmi_move:arrival_timestamp_seconds", arrived),
                ("vmi_move:psi_agent_vmi_wait_ratio:before10m", wait),
                ("vmi_move:psi_agent_vmi_wait_ratio:after10m", wait / 9.0),
                ("vmi_move:psi_agent_vmi_wait_seconds:before10m", wait * 3.0),
                ("vmi_move:psi_agent_vmi_wait_seconds:after10m", wait / 4.0),
            ] {
                self.series(series, &labels, judged..=judged, |_| value)?;
            }
        }
        Ok(())
    }

    fn others(&mut self) -> io::Result<()> {
        let all = -SECONDS..=0;
        for (standing, count) in [("known", 58.0), ("stale", 2.0)] {
            let labels = format!("job=\"psi-agent-bridge\",standing=\"{standing}\"");
            self.series("psi_agent_bridge_nodes", &labels, all.clone(), |_| count)?;
        }
        let labels = "job=\"psi-agent-bridge\",form=\"query\",result=\"answered\"";
        self.counter("psi_agent_bridge_requests_total", &labels, all.clone(), |_| 1.0 / 60.0)?;
        let end = self.end as f64;
        let labels =
            "job=\"kube-state-metrics\",namespace=\"psi-agent\",cronjob=\"psi-agent-reap\"";
        self.series("kube_cronjob_status_last_successful_time", &labels, all, |_| end - 1_000.0)
    }

    /// A counter that grows by `rate`.
    fn counter(
        &mut self,
        name: &str,
        labels: &dyn Display,
        times: std::ops::RangeInclusive<i64>,
        rate: impl Fn(i64) -> f64,
    ) -> io::Result<()> {
        let mut total = 1_000.0;
        for at in times.step_by(usize::try_from(STEP).unwrap()) {
            total += rate(at) * f64::from(STEP);
            writeln!(self.out, "{name}{{{labels}}} {total:.3} {}", self.end + at)?;
        }
        Ok(())
    }
}

/// Two hours and a half before the end.
const MOVE: i64 = -9_000;

fn of_node(job: &str, node: u64) -> String {
    format!("job=\"{job}\",instance=\"10.0.4.{node}:9558\",node=\"node-{node:02}\"")
}

fn one_of<const N: usize>(all: &[&'static str; N], seed: u64) -> &'static str {
    all[usize::try_from(random(seed)).unwrap() % N]
}

fn vm(number: u64) -> Vm {
    let (node, place) = (number % NODES, number / NODES);
    let namespace = one_of(&NAMESPACES, number);
    let application = one_of(&APPLICATIONS, number + 9_000);
    let share = 0.25 + 0.75 * (random(number + 7) % 1_000) as f64 / 1_000.0;
    let made = |namespace: &str, name: String, share| Vm {
        node,
        namespace: namespace.into(),
        name,
        share,
    };
    match (node, place) {
        (CONTENDED, 0) => made("shop", "db".into(), 1.11),
        (CONTENDED, 1) => made("shop", "web".into(), 1.06),
        (CONTENDED, 2) => made("shop", "batch".into(), 0.02),
        _ => made(namespace, format!("{application}-{number:04}"), share),
    }
}

/// CPU contention of a node, 0 to 1.
fn contention(node: u64, at: i64) -> f64 {
    let wave = wave(node, at);
    let high = match node {
        CONTENDED => 0.06 + 0.70 * ((at + 5_400) as f64 / 1_800.0).clamp(0.0, 1.0),
        7 => {
            if at < MOVE {
                0.42
            } else {
                0.09
            }
        }
        23 => 0.33,
        THROTTLED => 0.004,
        3 | 11 | 28 | 36 | 47 => 0.18,
        _ => 0.03,
    };
    (high * (0.75 + 0.5 * wave)).min(0.85)
}

/// Between 0 and 1, with a new course about every ten minutes, and small changes between.
fn wave(seed: u64, at: i64) -> f64 {
    let point = |number: i64| {
        (random(seed.wrapping_mul(1_000_003) ^ number as u64) % 1_000) as f64 / 1_000.0
    };
    let at = at + SECONDS;
    let (number, part) = (at / 600, (at % 600) as f64 / 600.0);
    let smooth = point(number) * (1.0 - part) + point(number + 1) * part;
    0.9 * smooth + 0.1 * point(at + 1_000_000)
}

/// `SplitMix64`: the same numbers in each run.
fn random(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
