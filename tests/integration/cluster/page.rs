//! The page, looked at in a real browser.

use std::fs;

use serde_json::{Value, json};

use crate::support::agent::Agent;
use crate::support::browser::Browser;
use crate::support::shown_node::ShownNode;
use looks::{check_accessibility, check_looks, draw_top};

mod looks;

/// What the page was given, and its texts, of the same moment.
const SEEN: &str = "({seen, rows: Object.fromEntries(['members', 'others', 'users'].map((id) => \
    [id, [...byId(id).rows].map((row) => [...row.cells].map((cell) => cell.textContent))])), \
    score: byId('score').innerText, tile: byId('cpu').innerText})";

struct Scene {
    browser: Browser,
    agent: Agent,
    node: ShownNode,
}

impl Scene {
    /// The page of an agent that has had the time to score.
    fn open(name: &str) -> Self {
        let node = ShownNode::new(name);
        let flags = node.flags();
        let agent = Agent::start(&flags.iter().map(String::as_str).collect::<Vec<_>>());
        let mut browser = Browser::start(name);
        browser.look(1400, 800, "light");
        browser.open(&format!("http://{}/", agent.address));
        browser.wait_until("seen !== null && seen.node.score !== null && before !== null");
        browser.wait_until("seen.agent.publish.level === 'high'");
        Self { browser, agent, node }
    }

    fn text_of(&mut self, id: &str) -> String {
        self.browser.value(&format!("byId('{id}').innerText")).as_str().unwrap().to_owned()
    }

    /// What the browser complained of.
    fn complaints(&mut self) -> Vec<String> {
        let mut complaints = Vec::new();
        for method in ["Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"] {
            let events = self.browser.events(method);
            complaints.extend(events.into_iter().map(|event| event["params"].to_string()));
        }
        complaints
    }

    /// Whom the browser asked.
    fn requests(&mut self) -> Vec<String> {
        let requests = self.browser.events("Network.requestWillBeSent");
        let address = |event: &Value| event["params"]["request"]["url"].as_str().unwrap().into();
        requests.into_iter().map(address).collect()
    }
}

/// A text says a share as whole percent; which of two next to each other it says of the middle between
/// them is the browser's affair.
fn check_percent(text: &str, share: &Value) {
    let Some(percent) = share.as_f64().map(|share| share * 100.0) else {
        return assert_eq!(text, "–");
    };
    let number = text.strip_suffix("\u{a0}%").unwrap_or_else(|| panic!("{text} for {share}"));
    let off = f64::from(number.parse::<u32>().unwrap()) - percent;
    assert!(off.abs() < 0.5 + 1e-9, "{text} for {share}");
}

fn cgroup<'a>(seen: &'a Value, name: &str) -> &'a Value {
    let mut cgroups = seen["cgroups"].as_array().unwrap().iter();
    cgroups.find(|cgroup| cgroup["vm"] == name && cgroup["is_vm"] == true).unwrap()
}

/// The larger share of CPU and memory, as a cell has it.
fn check_larger(text: &str, shares: &Value, part: &str) {
    let share = |resource: &str| match part {
        "" => shares[resource].clone(),
        part => shares[resource][part].clone(),
    };
    let (cpu, memory) = (share("cpu"), share("memory"));
    let is_memory = memory.as_f64().unwrap_or(0.0) > cpu.as_f64().unwrap_or(0.0);
    let (word, largest) = if is_memory { ("memory ", memory) } else { ("CPU ", cpu) };
    check_percent(text.strip_prefix(word).unwrap_or(text), &largest);
    assert_eq!(text.starts_with(word), largest.as_f64().is_some_and(|share| share > 0.0), "{text}");
}

/// Every VM's row shows what `/snapshot.json` contains.
fn check_rows(scene: &mut Scene) {
    let all = scene.browser.value(SEEN);
    let rows = all["rows"]["members"].as_array().unwrap();
    assert_eq!(rows.len(), 4, "{rows:#?}");
    for row in rows {
        let name = row[0].as_str().unwrap().strip_prefix("shop/").unwrap();
        let vm = cgroup(&all["seen"], name);
        let scored = &vm["scored"];
        let cells: Vec<&str> =
            row.as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
        check_larger(cells[1], &scored["contention"], "");
        check_larger(cells[2], &scored["waiting"], "own_limit");
        let usage = scored["usage"].as_f64().unwrap();
        // The others have no limit here: absent is not zero.
        let limit = if name == "batch" { "0.40" } else { "–" };
        assert_eq!(cells[3], format!("{usage:.2} / 0.25 / {limit}"), "{name}");
        assert!(cells[4].ends_with(" / 2.0\u{a0}GiB"), "{name}: {}", cells[4]);
        if name == "batch" {
            assert!(cells[4].starts_with("700\u{a0}MiB"), "{}", cells[4]);
        }
        let pressure = &scored["pressure"];
        let (some, full) = cells[5].split_once(" / ").unwrap();
        check_percent(some, &pressure["cpu"]["some"]);
        check_percent(full, &pressure["cpu"]["full"]);
        check_percent(cells[6], &pressure["memory"]["some"]);
        check_percent(cells[7], &pressure["io"]["some"]);
    }
    let others = all["rows"]["others"].as_array().unwrap();
    assert!(others.iter().any(|row| row[0] == "shop/virt-launcher-batch-x/guest-console-log"));
    check_users(&all);
    let node = &all["seen"]["node"];
    let points = all["score"].as_str().unwrap().strip_suffix(" high").unwrap();
    let points = points.parse::<f64>().unwrap();
    assert!((points - node["score"].as_f64().unwrap() * 100.0).abs() < 0.5 + 1e-9, "{points}");
    let tile = all["tile"].as_str().unwrap();
    let lines: Vec<&str> = tile.lines().filter(|line| !line.is_empty()).collect();
    check_percent(lines[1], &node["contention"]["cpu"]);
    assert_eq!(lines.len(), 2, "pressure is hidden at first: {lines:?}");
}

/// Pressure is shown on request, in the tiles and in the tables.
fn check_pressure(scene: &mut Scene) {
    let columns = "[...document.querySelectorAll('#members tr:first-child > *')]\
                   .filter((cell) => cell.checkVisibility()).length";
    assert_eq!(scene.browser.value(columns), 5);
    scene.browser.value("byId('raw').click()");
    assert_eq!(scene.browser.value(columns), 8);
    let tile = scene.text_of("cpu");
    let raw = tile.lines().last().unwrap().strip_prefix("pressure: ").unwrap();
    let (some, full) = raw.strip_suffix(" full").unwrap().split_once(" some, ").unwrap();
    let pressure = scene.browser.value("seen.node.pressure.cpu");
    check_percent(some, &pressure["some"]);
    check_percent(full, &pressure["full"]);
    scene.browser.value("byId('raw').click()");
}

/// Who uses the CPUs, be it a VM or not, and what of it was asked for.
fn check_users(all: &Value) {
    let rows = all["rows"]["users"].as_array().unwrap();
    let told = |row: &Value| -> Vec<String> {
        row.as_array().unwrap().iter().map(|cell| cell.as_str().unwrap().to_owned()).collect()
    };
    let rows: Vec<Vec<String>> = rows.iter().map(told).collect();
    let row = |name: &str| {
        let row = rows.iter().find(|row| row[0] == name);
        row.unwrap_or_else(|| panic!("no {name} in {rows:#?}"))
    };
    assert_eq!(row("shop/report/count")[3], "0.05", "no VM, and out of the scope: {rows:#?}");
    assert_eq!(row("shop/virt-launcher-batch-x/guest-console-log")[3], "–", "{rows:#?}");
    for name in ["shop/web", "shop/db", "shop/batch"] {
        let row = row(name);
        let [over, used] = [1, 2].map(|cell| row[cell].parse::<f64>().unwrap());
        assert!(row[3] == "0.25" && (over - (used - 0.25).max(0.0)).abs() < 0.011, "{row:?}");
    }
    let over: Vec<f64> = rows.iter().map(|row| row[1].parse().unwrap()).collect();
    assert!(over.is_sorted_by(|a, b| a >= b), "{rows:#?}");
    assert!(rows.iter().all(|row| row[0] != "shop/cache"), "it does nothing: {rows:#?}");
}

/// Who waits for the node and who for itself: the difference is to be seen.
fn check_blame(scene: &mut Scene) {
    let seen = scene.browser.value("seen");
    let held = |name| cgroup(&seen, name)["scored"]["contention"]["cpu"].as_f64().unwrap();
    let own = |name| cgroup(&seen, name)["scored"]["waiting"]["cpu"]["own_limit"].as_f64().unwrap();
    assert!(held("web") > 0.2 && held("db") > 0.2, "{} {}", held("web"), held("db"));
    assert!(own("web") == 0.0 && own("batch") > 0.4, "{} {}", own("web"), own("batch"));
    assert!(held("batch") < 0.1, "its waiting is its own: {}", held("batch"));
    let first = scene.browser.value("byId('members').rows[0].cells[0].textContent");
    assert!(first == "shop/web" || first == "shop/db", "{first}");
    assert_eq!(scene.text_of("counts"), "Scale 0 to 100. 4 VMs, 2 contended.");
    let sentence = scene.text_of("sentence");
    let waiting = ["db and web wait for CPU.", "web and db wait for CPU."];
    assert!(waiting.contains(&&*sentence), "{sentence}");
    let notes = scene.text_of("notes");
    assert!(notes.contains(" CPUs above its request. "), "{notes}");
    assert!(notes.trim_end().ends_with("batch is slowed by own limits."), "{notes}");
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(scene.text_of("node-name"), host.trim());
    assert_eq!(scene.browser.value("document.title"), format!("{} – psi-agent", host.trim()));
    assert_eq!(scene.text_of("members-title"), "4 VMs");
}

/// The scores that the agent has kept are drawn at once.
fn check_history(scene: &mut Scene) {
    let drawn = "[byId('history').lastElementChild.getAttribute('d').split('h0').length - 1, \
                 seen.agent.history.filter(known).length]";
    let drawn = scene.browser.value(drawn);
    assert!(drawn[0] == drawn[1] && drawn[0].as_u64() > Some(0), "{drawn}");
    let label = scene.browser.value("byId('history').ariaLabel");
    assert!(label.as_str().unwrap().ends_with("\u{a0}%"), "{label}");
}

fn check_agent(scene: &mut Scene) {
    scene.browser.value("byId('about').open = true");
    for (id, expected) in [
        ("read", " s ago"),
        ("window", ", over "),
        ("tick", " s ago, over "),
        ("scored", " s ago, basis psi/10"),
        ("published", "; dry run, not written"),
        ("published", ", observed "),
        ("pods", "listed"),
    ] {
        let text = scene.text_of(id);
        assert!(text.contains(expected), "{id}: {text}");
    }
    scene.browser.value("byId('about').open = false");
    assert_eq!(scene.browser.value("byId('errors').checkVisibility()"), false);
    assert_eq!(scene.browser.value("byId('alarm').checkVisibility()"), false);
}

/// No complaint, and nobody asked but the agent; the browser would tell, if it were so.
fn check_silence(scene: &mut Scene) {
    let complaints = scene.complaints();
    assert!(complaints.is_empty(), "{complaints:#?}");
    let own = format!("http://{}/", scene.agent.address);
    let requests = scene.requests();
    assert!(requests.contains(&format!("{own}snapshot.json")), "{requests:?}");
    assert!(requests.iter().all(|address| address.starts_with(&own)), "{requests:?}");
    scene.browser.value("void fetch('http://127.0.0.2:1/').catch(() => {})");
    scene.browser.wait_until("true");
    let complaints = scene.complaints();
    assert!(complaints.iter().any(|it| it.contains("Content Security Policy")), "{complaints:#?}");
    scene.browser.forget_events();
}

#[test]
#[ignore = "needs Chromium, root and a writable cgroup2 mount"]
fn the_page_shows_what_the_agent_says_and_when_it_falls_silent() {
    let mut scene = Scene::open("page");
    check_rows(&mut scene);
    check_pressure(&mut scene);
    check_blame(&mut scene);
    check_history(&mut scene);
    check_agent(&mut scene);
    check_silence(&mut scene);
    check_looks(&mut scene);
    check_accessibility(&mut scene);

    scene.agent.signal("STOP");
    scene.browser.wait_until("byId('alarm').checkVisibility()");
    let alarm = scene.text_of("alarm");
    assert!(alarm.starts_with("No response from the agent"), "{alarm}");
    assert!(alarm.contains("All values are old. For "), "{alarm}");
    let age = "parseInt(byId('read').textContent)";
    let at_first = scene.browser.value(age).as_u64().unwrap();
    scene.browser.wait_until(&format!("{age} > {at_first}"));
    scene.agent.signal("CONT");
    scene.browser.wait_until("!byId('alarm').checkVisibility()");

    let Scene { mut browser, agent, node } = scene;
    if std::env::var_os("UPDATE_PICTURES").is_some() {
        draw_top(&agent, &mut Browser::start("top"));
    }
    drop(agent);
    browser.wait_until("byId('alarm').innerText.includes('No response from the agent')");
    assert!(browser.value("byId('main').className").as_str().unwrap().contains("old"));
    drop(node);
}

#[test]
#[ignore = "needs Chromium, root and a writable cgroup2 mount"]
fn a_name_is_text_and_an_error_is_shown() {
    let mut scene = Scene::open("page-names");
    let hostile = "<img src=x onerror=\"document.title='taken'\">";
    scene.node.tell_in(hostile, &["web", "db", "cache", "batch"]);
    let has_text =
        format!("byId('members').innerText.includes({})", json!(format!("{hostile}/web")));
    scene.browser.wait_until(&has_text);
    assert_eq!(scene.browser.value("document.querySelectorAll('td *, th *, img').length"), 0);
    assert_ne!(scene.browser.value("document.title"), "taken");
    check_silence(&mut scene);

    scene.node.tell_text("no JSON");
    scene.browser.wait_until("byId('errors').innerText.includes('The pods cannot be listed')");
    let errors = scene.text_of("errors");
    assert!(errors.contains("pods.json"), "the error names the file: {errors}");
    // What was told before stays true.
    assert_eq!(scene.browser.value(&has_text), true);
}
