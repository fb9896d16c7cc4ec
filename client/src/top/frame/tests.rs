use serde_json::{Value, json};

use super::super::text::render;
use super::{Choice, Frame, Size};

fn lines(frame: &Frame, size: Size) -> Vec<String> {
    lines_of(frame, &mut Choice::default(), size)
}

pub(super) fn lines_of(frame: &Frame, choice: &mut Choice, size: Size) -> Vec<String> {
    super::lines(frame, choice, size).iter().map(|line| render(line, false)).collect()
}

fn cgroup(id: &str, more: &Value) -> Value {
    let mut cgroup = json!({"id": id, "level": "container", "is_vm": false,
        "pressure": {"cpu": {}, "memory": {}, "io": {}}});
    cgroup.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    cgroup
}

pub(super) fn vm(name: &str, contention: f64) -> Value {
    let waiting = json!({"raw": 0.5, "own_limit": 0.125, "node": 0.375, "contention": 0.3,
        "demand": 2.0});
    let none = json!({"raw": 0.0, "own_limit": 0.0, "node": 0.0, "contention": 0.0, "demand": 1.0});
    cgroup(
        &format!("/kubepods/{name}"),
        &json!({"is_vm": true, "vm": name, "namespace": "shop", "pod": "virt-launcher-x",
            "container": "compute",
            "scored": {"usage": 1.5, "contention": {"cpu": contention, "memory": 0.0, "io": null},
                "waiting": {"cpu": waiting, "memory": none, "io": null},
                "relief": {"cpus": 0.75, "score_without": 0.05}}}),
    )
}

pub(super) fn frame(cgroups: &[Value]) -> Frame {
    let node = json!({"score": 0.124, "contention": {"cpu": 0.124, "memory": 0.0, "io": null},
        "pressure": {"cpu": {"some": 0.98, "full": 0.4}, "memory": {"some": 0.0}, "io": {}},
        "population": "VMs", "contended": 1, "utilization": 0.81, "steal": null, "headroom_cpus": 1.25});
    let snapshot =
        json!({"version": "9.9", "observed_at_ms": 1_000, "node": node, "cgroups": cgroups});
    Frame {
        source: "agent 9.9 at 127.0.0.1:1".into(),
        snapshot: serde_json::from_value(snapshot).unwrap(),
        error: None,
    }
}

pub(super) const WIDE: Size = Size { columns: 100, rows: 10 };

#[test]
fn the_vm_with_the_largest_contention_comes_first() {
    let seen = frame(&[
        cgroup("/kubepods/other", &json!({})),
        vm("idle", 0.0),
        vm("starved", 0.314),
        cgroup(
            "/new",
            &json!({"is_vm": true, "vm": "new", "namespace": "shop",
            "awaits_handover": true, "pressure": {"cpu": {"some": 0.3, "full": 0.1}, "memory": {"some": 0.2}, "io": {}}}),
        ),
    ]);
    let expected = [
        "00:00:01 UTC  agent 9.9 at 127.0.0.1:1",
        "node: score 12  VMs contended 1  busy 81%  steal -  headroom 1.25 CPUs",
        "contention: CPU 12%  memory 0%  I/O -",
        "pressure, some: CPU 98%  memory 0%  I/O -",
        "",
        "VM                  >CONTENTION   CPUS  CPU-WAIT   NODE  LIMIT  RELIEF  MEM-WAIT",
        "shop/starved                31%   1.50       50%    38%    12%    0.75        0%",
        "shop/idle                    0%   1.50       50%    38%    12%    0.75        0%",
        "shop/new (arriving)           -      -       30%      -      -       -       20%",
    ];
    assert_eq!(lines(&seen, WIDE), expected);
}

#[test]
fn a_vm_over_its_budget_comes_first_and_the_vm_to_move_is_named() {
    let mut patient = vm("patient", 0.1);
    (patient["cpu_wait_budget"], patient["scored"]["cpu_ready"]) = (json!(0.05), json!(0.06));
    let mut within = vm("within", 0.5);
    (within["cpu_wait_budget"], within["scored"]["cpu_ready"]) = (json!(0.5), json!(0.06));
    let mut seen = frame(&[vm("starved", 0.9), patient, within]);
    let agent = json!({"publish": {"candidate": {"namespace": "shop", "name": "db"}}});
    seen.snapshot.agent = serde_json::from_value(agent).unwrap();
    let lines = lines(&seen, Size::PIPE);
    assert!(lines[1].ends_with("  move first shop/db"), "{lines:#?}");
    let names: Vec<&str> = lines[6..].iter().map(|line| line.split("  ").next().unwrap()).collect();
    assert_eq!(names, ["shop/patient (over budget)", "shop/starved", "shop/within"]);
}

#[test]
fn the_largest_cpu_users_are_shown_on_a_large_terminal() {
    let mut waits = vm("starved", 0.3);
    waits["is_user"] = json!(true);
    waits["cpu_request"] = json!(1.25);
    let user = |name: &str, request: Option<f64>| {
        let names = json!({"namespace": "n", "pod": name, "container": "c", "is_user": true,
            "cpu_request": request});
        cgroup(&format!("/kubepods/{name}"), &names)
    };
    let mut seen = frame(&[
        waits,
        cgroup("/system.slice", &json!({"level": "host", "is_user": true})),
        user("greedy", Some(0.5)),
        user("asked", Some(4.0)),
        user("idle", None),
        cgroup("/kubepods", &json!({"level": "host", "is_user": false})),
    ]);
    for (cgroup, used) in
        seen.snapshot.cgroups.iter_mut().skip(1).zip([0.125, 2.0, 3.0, 0.001, 9.0])
    {
        cgroup.used = Some(used);
    }
    let expected = [
        "",
        "CPU USER       EXCESS   CPUS  REQUEST",
        "n/greedy/c       1.50   2.00     0.50",
        "shop/starved     0.25   1.50     1.25",
        "/system.slice    0.12   0.12        -",
        "n/asked/c        0.00   3.00     4.00",
    ];
    assert_eq!(lines(&seen, Size::PIPE)[7..], expected);
    let lines = lines(&seen, Size { columns: 100, rows: 24 });
    assert_eq!(lines[7..13], expected);
    assert!(lines[14].starts_with("? help"), "{lines:#?}");
}

#[test]
fn without_vms_the_containers_are_shown_and_without_containers_all_cgroups() {
    let root = cgroup("/", &json!({"level": "root"}));
    let host = cgroup("/housekeeping", &json!({"level": "host", "cpu_seconds": 5.0}));
    let container = cgroup("/kubepods/a", &json!({"namespace": "n", "pod": "p", "container": "c"}));
    let names = |cgroups: &[Value]| {
        let lines = lines(&frame(cgroups), Size::PIPE);
        let names = lines[5..].iter().map(|line| line.split(' ').next().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(&[root.clone(), host.clone(), container]), ["CONTAINER", "n/p/c"]);
    assert_eq!(names(&[root, host]), ["CGROUP", "/housekeeping"]);
}

#[test]
fn the_scored_population_is_shown_by_names() {
    let scored = vm("", 0.1)["scored"].clone();
    let unit = |name: &str, more: Value| {
        let mut unit = cgroup(&format!("/{name}"), &json!({"level": "host", "unit": name}));
        unit.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        unit
    };
    let names = |population: &str, cgroups: &[Value]| {
        let mut seen = frame(cgroups);
        seen.snapshot.node.population = Some(population.into());
        let lines = lines(&seen, Size::PIPE);
        assert!(lines[1].contains(&format!("  {population} contended 1  ")), "{lines:#?}");
        let names = lines[5..].iter().map(|line| line.split(' ').next().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    let cgroups = [
        unit("web-1.service", json!({"scored": scored})),
        unit("calm.scope", json!({})),
        cgroup("/cage", &json!({"level": "host", "scored": scored})),
    ];
    assert_eq!(names("units", &cgroups), ["UNIT", "/cage", "web-1.service"]);
    let vm = unit("machine-qemu-3-web.scope", json!({"is_vm": true, "vm": "web"}));
    assert_eq!(names("VMs", &[cgroups[0].clone(), vm]), ["VM", "web"]);
    // A VM that arrives is not scored yet.
    let new = cgroup("/new", &json!({"is_vm": true, "vm": "new", "level": "pod"}));
    let container = cgroup("/a", &json!({"namespace": "n", "pod": "p", "container": "c"}));
    assert_eq!(names("containers", &[new, container]), ["CONTAINER", "n/p/c"]);
}

#[test]
fn the_reason_of_a_missing_score_is_shown() {
    let mut seen = frame(&[vm("a", 0.1)]);
    seen.snapshot.node.no_score = Some("CPU contention is unknown, since it is: wait".into());
    let shown = &lines(&seen, Size { rows: 20, ..WIDE })[4];
    assert_eq!(shown, "No score: CPU contention is unknown, since it is: wait.");
}

#[test]
fn problems_of_the_agent_are_shown() {
    let mut seen = frame(&[vm("a", 0.1)]);
    let agent = json!({"pods_listed": false, "pods_error": null,
        "publish": {"error": {"message": "no such node", "at_ms": 1}}});
    seen.snapshot.agent = serde_json::from_value(agent).unwrap();
    let expected = [
        "The score cannot be published: no such node",
        "The pods of this node are not listed yet, so they have no series.",
    ];
    assert_eq!(lines(&seen, Size { rows: 20, ..WIDE })[4..6], expected);
}

#[test]
fn the_lines_fit_a_terminal_of_any_size() {
    let many: Vec<Value> = (0..50).map(|number| vm(&"long-name-".repeat(number), 0.1)).collect();
    let seen = Frame { error: Some("why ".repeat(20)), ..frame(&many) };
    for columns in 0..150 {
        for rows in 0..40 {
            let lines = lines(&seen, Size { columns, rows });
            assert!(lines.len() <= rows, "{columns}x{rows}: {lines:#?}");
            assert!(lines.iter().all(|line| line.len() <= columns), "{columns}x{rows}: {lines:#?}");
        }
    }
}

#[test]
fn a_narrow_terminal_omits_the_last_columns_and_the_middle_of_names() {
    let seen = frame(&[vm("database-of-the-shop-1", 0.314)]);
    let seen = lines(&seen, Size { columns: 40, rows: 12 });
    let expected = [
        "00:00:01 UTC  agent 9.9 at 127.0.0.1:1",
        "node: score 12  VMs contended 1",
        "busy 81%  steal -  headroom 1.25 CPUs",
        "contention: CPU 12%  memory 0%  I/O -",
        "pressure, some: CPU 98%  memory 0%",
        "I/O -",
        "",
        "VM                    >CONTENTION   CPUS",
        "shop/data..the-shop-1         31%   1.50",
    ];
    assert_eq!(seen, expected);
}

#[test]
fn omitted_rows_are_counted() {
    let many: Vec<Value> = (0..9).map(|number| vm(&format!("v{number}"), 0.1)).collect();
    let seen = lines(&frame(&many), WIDE);
    assert_eq!(seen.len(), 10);
    assert_eq!(seen.last().unwrap(), "6 more");
    let tall = lines(&frame(&many), Size { rows: 24, ..WIDE });
    assert!(tall.iter().any(|line| line.starts_with("shop/v8")), "{tall:#?}");
    assert!(tall.last().unwrap().ends_with("q quit"), "{tall:#?}");
    assert_eq!(lines(&frame(&many), Size::PIPE).len(), 15);
}

#[test]
fn control_characters_in_names_are_escaped() {
    let hostile = "a\u{1b}[2J\r\n\u{202e}\u{9b}H\u{e4}";
    let mut seen = frame(&[vm(hostile, 0.1), cgroup(hostile, &json!({"level": "host"}))]);
    seen.source = hostile.into();
    seen.error = Some(hostile.into());
    for size in [WIDE, Size::PIPE] {
        let lines = lines(&seen, size);
        assert!(lines.iter().all(|line| line.bytes().all(|byte| (b' '..=b'~').contains(&byte))));
    }
    let lines = lines(&seen, Size::PIPE);
    let name = r"shop/a\u{1b}[2J\u{d}\u{a}\u{202e}\u{9b}H\u{e4} ";
    assert!(lines.iter().any(|line| line.starts_with(name)), "{lines:#?}");
}

#[test]
fn a_number_wider_than_its_column_is_shown_as_a_question_mark() {
    let mut seen = frame(&[vm("a", 1e300)]);
    seen.snapshot.node.score = None;
    let lines = lines(&seen, WIDE);
    assert!(lines[1].starts_with("node: score -  VMs contended 1"), "{lines:#?}");
    let row: Vec<&str> = lines[6].split_whitespace().collect();
    assert_eq!(row[..3], ["shop/a", "?", "1.50"]);
}

#[test]
fn a_name_of_any_length_is_shown() {
    let long = "x".repeat(70_000);
    let shown = lines(&frame(&[cgroup(&format!("/{long}"), &json!({}))]), Size::PIPE);
    let row = shown.iter().find(|line| line.starts_with("/xxx")).unwrap();
    assert!(row.len() == 120 && row.contains("xx..xx"), "{}", row.len());
    let wide = Size::of_pipe(Some("999999"));
    let shown = lines(&frame(&[cgroup(&format!("/{long}"), &json!({}))]), wide);
    let row = shown.iter().find(|line| line.starts_with("/xxx")).unwrap();
    assert!(row.len() < 70_000 && row.contains("xx..xx"), "{}", row.len());
}

#[test]
fn a_pipe_has_120_columns_or_those_of_the_environment() {
    let columns = |variable| Size::of_pipe(variable).columns;
    assert_eq!([None, Some(""), Some("0"), Some("-1"), Some("wide")].map(columns), [120; 5]);
    let seen = lines(&frame(&[vm("a", 0.1)]), Size::of_pipe(Some("40")));
    assert!(seen.iter().all(|line| line.len() <= 40), "{seen:#?}");
    assert!(!seen.iter().any(|line| line.ends_with("q quit")), "{seen:#?}");
}

#[test]
fn the_reason_of_an_empty_table_is_shown() {
    let shown = |scope: Option<&str>, listed: Option<bool>| {
        let mut seen = frame(&[cgroup("/", &json!({"level": "root"}))]);
        seen.snapshot.scope = scope.map(|scope| scope.to_owned().into());
        let agent = json!({"pods_listed": listed, "publish": {}});
        seen.snapshot.agent = serde_json::from_value(agent).unwrap();
        lines(&seen, Size::PIPE).pop().unwrap()
    };
    let no_pod = "No running pod is in the scope virt-launcher: see --scope.";
    assert_eq!(shown(Some("virt-launcher"), Some(true)), no_pod);
    assert!(shown(Some("pods"), Some(false)).starts_with("Waiting for the list of pods; "));
    assert!(shown(Some("all"), None).ends_with("set --cgroup-root to the host's cgroup2 mount."));
    assert!(!shown(Some("all"), None).contains("--scope"));
    assert_eq!(shown(None, None), "There are no cgroups in the agent's --scope.");
}

/// A node as `top` shows it, in a terminal of this width.
#[test]
fn a_node_is_shown_at_usual_widths() {
    let mut vms = [vm("billing-database-0", 0.314), vm("web", 0.02)];
    vms[0]["scored"]["waiting"]["io"] = vms[1]["scored"]["waiting"]["memory"].clone();
    vms[0]["is_user"] = json!(true);
    vms[0]["cpu_request"] = json!(0.5);
    let mut seen = frame(&vms);
    seen.snapshot.node_name = Some("worker-17.rack-4.example.org".into());
    let agent = json!({"publish": {"level": "medium",
        "candidate": {"namespace": "shop", "name": "billing-database-0"}}});
    seen.snapshot.agent = serde_json::from_value(agent).unwrap();
    let mut text = String::new();
    for columns in [80, 120, 200] {
        let lines = lines(&seen, Size { columns, rows: 24 });
        assert!(lines.iter().all(|line| line.len() <= columns), "{lines:#?}");
        let lines = lines.iter().map(|line| format!("{}\n", line.trim_end()));
        text += &format!("{columns} columns\n{}\n", lines.collect::<String>());
    }
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/src/top/frame/widths.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(golden, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(golden).unwrap());
}

#[test]
fn the_nodes_name_comes_with_its_level_or_the_time_until_the_first_score() {
    let mut seen = frame(&[]);
    seen.snapshot.node_name = Some("worker-1".into());
    let agent = json!({"pods_listed": null, "pods_error": null,
        "publish": {"error": null, "level": "medium"}});
    seen.snapshot.agent = serde_json::from_value(agent).unwrap();
    assert!(lines(&seen, WIDE)[1].starts_with("worker-1: score 12 medium  VMs"));
    seen.snapshot.node.score = None;
    seen.snapshot.warm_up_left_s = Some(17.6);
    assert!(lines(&seen, WIDE)[1].starts_with("worker-1: warming up, 18 s left  VMs"));
    seen.snapshot.agent = None;
    seen.snapshot.warm_up_left_s = None;
    assert!(lines(&seen, WIDE)[1].starts_with("worker-1: score -  VMs"));
}
