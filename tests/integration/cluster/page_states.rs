//! What the page shows where little or nothing is scored, in a real browser.

use serde_json::{Value, json};

use crate::support::agent::Agent;
use crate::support::browser::Browser;
use crate::support::fake_node::FakeNode;

#[test]
#[ignore = "needs Chromium"]
fn units_are_scored_by_their_names_and_a_missing_score_has_its_reason() {
    let service = r"system.slice/dev\x2dserver.service";
    let reason = "CPU contention is unknown, since there are no pods and no systemd units: \
                  set --cgroup-root to the host's cgroup2 mount.";
    for (units, rows, counts, sentence, notes) in [
        (
            &[service, "user.slice"][..],
            json!(["dev-server.service"]),
            "1 unit",
            "No unit waits because of the node.",
            "",
        ),
        (
            &[r"machine.slice/machine-qemu\x2d1\x2dweb.scope", service],
            json!(["web"]),
            "1 VM",
            "No VM waits because of the node.",
            "",
        ),
        (&[], json!([]), "0 cgroups", "No score.", reason),
    ] {
        let host = FakeNode::of_units("page-units", units);
        let flags = [&host.flags()[..], &["--cpu-source=psi".into()]].concat();
        let agent = Agent::start(&flags.iter().map(String::as_str).collect::<Vec<_>>());
        let mut browser = Browser::start("page-units");
        browser.open(&format!("http://{}/", agent.address));
        browser.wait_until(&format!("byId('sentence').innerText === {}", json!(sentence)));
        let names = "[...byId('members').rows].map((row) => row.cells[0].textContent)";
        assert_eq!(browser.value(names), rows);
        let shown = browser.value("byId('counts').innerText");
        assert_eq!(shown, format!("Scale 0 to 100. {counts}, 0 contended."));
        assert_eq!(browser.value("byId('notes').textContent.trim()"), notes);
        // Pressure is shown unasked only where nothing is scored.
        let is_empty = rows == json!([]);
        assert_eq!(browser.value("document.body.classList.contains('with-psi')"), is_empty);
        let empty = "Nothing is scored: see the reason at the top.";
        let shown = browser.value("byId('empty').checkVisibility() && byId('empty').innerText");
        assert_eq!(shown, if is_empty { json!(empty) } else { json!(false) });
    }
}

/// What the page shows of the same snapshot with other fields.
fn shown_with(browser: &mut Browser, change: &str) -> Value {
    let texts = "['sentence', 'notes', 'empty', 'no-psi', 'members-title']\
                 .map((id) => byId(id).checkVisibility() ? byId(id).innerText.trim() : '')";
    browser.value(&format!(
        "(() => {{ const it = structuredClone(first); {change}; show(it); return {texts}; }})()"
    ))
}

#[test]
#[ignore = "needs Chromium"]
fn every_empty_state_says_why_and_the_headline_stays_short() {
    let host = FakeNode::of_units("page-empty", &["system.slice/web.service"]);
    let flags = [&host.flags()[..], &["--cpu-source=psi".into()]].concat();
    let agent = Agent::start(&flags.iter().map(String::as_str).collect::<Vec<_>>());
    let mut browser = Browser::start("page-empty");
    browser.open(&format!("http://{}/", agent.address));
    browser.wait_until("seen !== null && seen.node.score !== null && known(seen.window_s)");
    browser.value("window.first = seen; undefined");
    let no_psi = "The kernel reports none: boot with psi=1.";
    for (change, expected) in [
        ("", json!(["No unit waits because of the node.", "", "", "", "1 unit"])),
        (
            "it.cgroups = []; it.agent.pods_listed = false; it.node.score = null; it.warm_up_left_s = 20",
            json!([
                "Warming up.",
                "The first score needs 30 s of readings: 20 s left.",
                "Nothing is scored: see the reason at the top.",
                "",
                ""
            ]),
        ),
        (
            "it.cgroups = []; it.node.population = 'VMs'",
            json!([
                "No VM waits because of the node.",
                "",
                "No VM, container or unit runs on this node. When one starts, it is listed here.",
                "",
                ""
            ]),
        ),
        (
            "for (const all of Object.values(it.node.pressure)) all.some = all.full = null; \
             it.node.score = null; it.node.no_score = 'why: what to do'",
            json!(["No score.", "why: what to do.", "", no_psi, "1 unit"]),
        ),
        (
            "it.node.population = 'VMs'; it.cgroups = ['a', 'b', 'c', 'd'].map((name) => ({...it.cgroups.at(-1), is_vm: true, \
             vm: name + '-database-of-the-shop', scored: {...it.cgroups.at(-1).scored, \
             contention: {cpu: 0.5, memory: 0.2, io: 0}}}))",
            json!(["4 VMs wait for CPU and memory.", "", "", "", "4 VMs"]),
        ),
        (
            "it.node.population = 'containers'; it.cgroups = [1, 2, 3, 4, 5].map((n) => ({...it.cgroups.at(-1), is_vm: false, unit: null, \
             level: 'container', id: '/kubepods/cri-containerd-' + `${n}`.repeat(64) + '.scope', \
             scored: {...it.cgroups.at(-1).scored, contention: {cpu: 0.5, memory: 0, io: 0}}}))",
            json!(["…/111111111111 and 4 more wait for CPU.", "", "", "", "5 containers"]),
        ),
    ] {
        assert_eq!(shown_with(&mut browser, change), expected, "{change}");
    }
    // A zero of memory says nothing about the CPU.
    let unknown = "it.cgroups.at(-1).scored.contention = {cpu: null, memory: 0, io: 0}";
    let headline = shown_with(&mut browser, unknown)[0].clone();
    assert_eq!(headline, "No unit is known to wait because of the node.");
    assert_eq!(browser.value("byId('members').rows[0].cells[1].textContent"), "–");
}
