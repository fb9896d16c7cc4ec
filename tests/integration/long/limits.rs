//! The shipped agent, bridge and reap within the memory limits of their manifests, in a virtual machine whose
//! kernel enforces them.

use crate::support::project::text;
use crate::support::virtual_machine::{boot, static_binary};

/// Of each of them, as the guest script has it.
const MEMORY_LIMIT: u64 = 64 << 20;

#[test]
#[ignore = "needs QEMU, a Debian kernel and the static binary: tests/run prepares them"]
fn within_their_memory_limits_agent_bridge_and_reap_survive_what_others_send() {
    for (manifest, indent) in [
        ("base/daemonset.yaml", 10),
        ("components/bridge/deployment.yaml", 10),
        ("base/reap.yaml", 14),
    ] {
        let manifest = text(&format!("daemonset/{manifest}"));
        let limits = format!("\n{0}limits:\n{0}  memory: 64Mi\n", " ".repeat(indent));
        assert!(manifest.contains(&limits), "{manifest}");
    }
    let guest = boot(&static_binary(), "under-limits", 1);
    println!("{}", guest.text("logs", 0));
    let number = |section: &str| guest.text(section, 0).trim().parse::<u64>().unwrap();
    assert!(number("metrics") > 200_000, "{}", number("metrics"));
    for name in ["agent", "bridge", "reap"] {
        let (peak, events) =
            (number(&format!("{name}.peak")), guest.text(&format!("{name}.events"), 0));
        println!("{name}: {:.1} MiB at most", peak as f64 / 1024.0 / 1024.0);
        assert!(peak < MEMORY_LIMIT && events.contains("oom_kill 0"), "{name}: {peak}, {events}");
    }
    for name in ["agent", "bridge"] {
        println!("{name}: {}", guest.text(&format!("{name}.sock"), 0).trim());
        assert_eq!(number(&format!("{name}.probed")), 10, "{name}");
        assert_eq!(guest.text(&format!("{name}.processes"), 0).lines().count(), 1, "{name} ended");
    }
    assert_eq!(guest.text("reap", 0), "0 of 15000 nodes with a value cleared\n");
    assert!(number("bridge.answers") > 0);
}
