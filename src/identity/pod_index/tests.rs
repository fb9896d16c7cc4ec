use super::*;
use crate::cgroup_path::Place;
use crate::contract::Prefix;
use crate::identity::matching::match_pods;
use serde_json::{Value, json};

const UID: &str = "1234abcd-0000-1111-2222-333344445555";
const COMPUTE: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const CONSOLE: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

fn launcher(runtime: &str) -> Value {
    json!({
        "metadata": {
            "uid": UID, "namespace": "vms", "name": "virt-launcher-demo-x7k2p",
            "labels": {"kubevirt.io": "virt-launcher", "kubevirt.io/nodeName": "node-a"},
            "annotations": {"kubevirt.io/domain": "demo"},
        },
        "spec": {"nodeName": "node-a"},
        "status": {
            "containerStatuses": [{
                "name": "compute", "image": "launcher:v1", "restartCount": 0,
                "containerID": format!("{runtime}://{COMPUTE}"),
            }],
            "initContainerStatuses": [{
                "name": "guest-console-log", "image": "launcher:v1", "restartCount": 2,
                "containerID": format!("{runtime}://{CONSOLE}"),
            }],
        },
    })
}

fn pod(value: &Value) -> Pod {
    serde_json::from_value(value.clone()).unwrap()
}

fn index_of(value: &Value) -> PodIndex {
    let mut index = PodIndex::default();
    index.apply(&pod(value));
    index
}

fn find(index: &PodIndex, path: &str) -> Option<Arc<Workload>> {
    let path = path.replace("<compute>", COMPUTE).replace("<console>", CONSOLE);
    let Place::Pod(place) = Place::of_path(&path) else { panic!("{path} is in a pod") };
    index.workload(&place).cloned()
}

const POD: &str = "/kubepods.slice/kubepods-pod1234abcd_0000_1111_2222_333344445555.slice";

fn in_pod(index: &PodIndex, below: &str) -> Option<Arc<Workload>> {
    find(index, &format!("{POD}{below}"))
}

#[test]
fn a_containerd_container_is_named_by_its_id() {
    let index = index_of(&launcher("containerd"));
    let compute = in_pod(&index, "/cri-containerd-<compute>.scope").unwrap();
    assert_eq!((&*compute.container, &*compute.name), ("compute", COMPUTE));
    assert_eq!((&*compute.namespace, &*compute.image), ("vms", "launcher:v1"));
    assert!(compute.is_vm());
}

#[test]
fn a_cri_o_container_has_the_name_that_the_kubelet_composes() {
    let index = index_of(&launcher("cri-o"));
    let console = in_pod(&index, "/crio-<console>.scope").unwrap();
    let expected = format!("k8s_guest-console-log_virt-launcher-demo-x7k2p_vms_{UID}_2");
    assert_eq!(&*console.name, expected);
    assert!(console.vm.is_some() && !console.is_vm());
}

#[test]
fn the_pod_itself_has_no_container_labels() {
    let whole = in_pod(&index_of(&launcher("containerd")), "").unwrap();
    assert_eq!(&*whole.pod, "virt-launcher-demo-x7k2p");
    assert_eq!((&*whole.container, &*whole.name, &*whole.image), ("", "", ""));
    assert_eq!(&*whole.vm.as_ref().unwrap().name, "demo");
}

#[test]
fn an_unknown_cgroup_has_no_workload() {
    let index = index_of(&launcher("containerd"));
    let pause = "c".repeat(64);
    assert_eq!(in_pod(&index, &format!("/cri-containerd-{pause}.scope")), None);
    assert_eq!(in_pod(&index, "/cri-containerd-<compute>.scope/housekeeping"), None);
    assert_eq!(in_pod(&PodIndex::default(), ""), None);
}

#[test]
fn a_static_pod_is_found_by_the_container_in_its_status() {
    let mut mirror = launcher("containerd");
    let hash = "0123456789abcdef0123456789abcdef";
    mirror["metadata"]["annotations"] = json!({});
    mirror["metadata"]["labels"] = json!({});
    let index = index_of(&mirror);
    let path = format!("/kubepods/besteffort/pod{hash}/<compute>");
    assert_eq!(&*find(&index, &path).unwrap().container, "compute");
    let mut gone = index.clone();
    gone.delete(&pod(&mirror).metadata.uid);
    assert_eq!(find(&gone, &path), None);
    // Without the container, the pod is not found.
    mirror["status"] = json!({});
    let mut changed = index;
    changed.apply(&pod(&mirror));
    assert_eq!(find(&changed, &path), None);
}

#[test]
fn no_annotation_lets_a_pod_take_the_place_of_another_or_lose_its_own() {
    let victim = launcher("containerd");
    let mut thief = launcher("containerd");
    thief["metadata"]["uid"] = json!("9999abcd-0000-1111-2222-333344445555");
    thief["metadata"]["name"] = json!("thief");
    thief["metadata"]["annotations"]["kubernetes.io/config.hash"] = json!(UID);
    for order in [[&victim, &thief], [&thief, &victim]] {
        let mut index = PodIndex::of(Prefix::default(), &order.map(pod));
        for _ in 0..2 {
            let found = in_pod(&index, "/cri-containerd-<compute>.scope").unwrap();
            assert_eq!(&*found.pod, "virt-launcher-demo-x7k2p");
            let own = "/kubepods/pod9999abcd-0000-1111-2222-333344445555";
            assert_eq!(&*find(&index, own).unwrap().pod, "thief");
            order.iter().for_each(|value| index.apply(&pod(value)));
        }
        assert_eq!(index.count(), 2);
    }
}

#[test]
fn the_cgroup_of_a_static_pod_belongs_to_the_pod_whose_container_is_below() {
    let hash = "0123456789abcdef0123456789abcdef";
    let annotated = |name: &str, uid: &str, container: &str| {
        let annotations = json!({"kubernetes.io/config.hash": hash});
        let status = json!({"name": "main", "containerID": format!("containerd://{container}")});
        pod(&json!({
            "metadata": {"uid": uid, "namespace": "any", "name": name, "annotations": annotations},
            "status": {"containerStatuses": [status]},
        }))
    };
    let mirror = annotated("etcd", UID, COMPUTE);
    let tenant = annotated("thief", "9999abcd-0000-1111-2222-333344445555", CONSOLE);
    let own = "/kubepods/pod9999abcd-0000-1111-2222-333344445555";
    let tree = [
        format!("/kubepods/pod{hash}"),
        format!("/kubepods/pod{hash}/{COMPUTE}"),
        own.to_owned(),
        format!("{own}/{CONSOLE}"),
    ];
    let found = |index: &PodIndex| {
        let places = tree.each_ref().map(|path| Place::of_path(path));
        let (found, _) = match_pods(Some(index), places.iter());
        let pods = found.iter().map(|found| found.workload().map(|all| all.pod.to_string()));
        pods.collect::<Vec<Option<String>>>()
    };
    let thief = || Some("thief".to_owned());
    for order in [[&mirror, &tenant], [&tenant, &mirror]] {
        let mut index = PodIndex::of(Prefix::default(), &order.map(Pod::clone));
        let etcd = || Some("etcd".to_owned());
        assert_eq!(found(&index), [etcd(), etcd(), thief(), thief()]);
        index.delete(&mirror.metadata.uid);
        assert_eq!(found(&index), [None, None, thief(), thief()], "no pod has them");
    }
}

#[test]
fn the_target_of_a_migration_awaits_handover_until_the_vm_runs_here() {
    let mut target = launcher("containerd");
    let awaits =
        |pod: &Value| in_pod(&index_of(pod), "").unwrap().vm.as_ref().unwrap().awaits_handover;
    assert!(!awaits(&target));
    target["metadata"]["labels"]["kubevirt.io/migrationJobUID"] = json!("job");
    target["metadata"]["labels"]["kubevirt.io/nodeName"] = json!("node-b");
    assert!(awaits(&target));
    let ready = "kubevirt.io/migration-target-ready-timestamp";
    let mut runs = target.clone();
    runs["metadata"]["annotations"][ready] = json!("2026-01-02 03:04:05 +0000 UTC");
    assert!(!awaits(&runs));
    target["metadata"]["labels"]["kubevirt.io/nodeName"] = json!("node-a");
    assert!(!awaits(&target));

    // From another cluster the target has the label before the VM has arrived.
    target["metadata"]["annotations"]["kubevirt.io/create-migration-target"] = json!("true");
    assert!(awaits(&target));
    target["metadata"]["annotations"][ready] = json!("2026-01-02 03:04:05 +0000 UTC");
    assert!(!awaits(&target));
}

#[test]
fn a_pod_with_a_hot_plugged_disk_is_no_vm() {
    let mut disk = launcher("containerd");
    disk["metadata"]["labels"]["kubevirt.io"] = json!("hotplug-disk");
    assert!(in_pod(&index_of(&disk), "").unwrap().vm.is_none());
}

#[test]
fn a_new_list_removes_missing_pods_and_keeps_unchanged_allocations() {
    let first = launcher("containerd");
    let mut second = first.clone();
    second["metadata"]["uid"] = json!("other");
    let mut index = index_of(&first);
    index.apply(&pod(&second));
    let before = in_pod(&index, "").unwrap();
    index.replace(&[pod(&first)]);
    assert_eq!(index.count(), 1);
    assert!(Arc::ptr_eq(&before, &in_pod(&index, "").unwrap()));

    let mut restarted = first.clone();
    restarted["status"]["containerStatuses"][0]["containerID"] =
        json!(format!("containerd://{CONSOLE}"));
    index.replace(&[pod(&restarted)]);
    assert_eq!(in_pod(&index, "/cri-containerd-<compute>.scope"), None);
    index.delete(&pod(&restarted).metadata.uid);
    assert_eq!(index.count(), 0);
}

#[test]
fn names_that_no_object_can_have_are_counted_and_not_exported() {
    let longest = format!("{}.{}", "a".repeat(126), "b".repeat(126));
    let too_long = "a".repeat(250_000);
    let named = |name: &str| {
        let mut value = launcher("containerd");
        value["metadata"]["annotations"]["kubevirt.io/domain"] = json!(name);
        let index = index_of(&value);
        let compute = in_pod(&index, "/cri-containerd-<compute>.scope").unwrap();
        (compute.vm.as_ref().map(|vm| vm.name.to_string()), index.rejected_names())
    };
    for good in ["a", "0.a-b.c", longest.as_str()] {
        assert_eq!(named(good), (Some(good.to_owned()), 0));
    }
    let longer = format!("{longest}c");
    for bad in ["", "A", "a.", "-a", "a-", "a b", "a\nb", "ä", "a..b", &longer, &too_long] {
        assert_eq!(named(bad), (None, 1), "{:.20}", bad);
    }
}

#[test]
fn an_image_that_is_too_long_is_counted_and_not_exported() {
    for (length, expected) in [(512, 0), (513, 1), (1_000_000, 1)] {
        let mut value = launcher("containerd");
        value["status"]["containerStatuses"][0]["image"] = json!("i".repeat(length));
        let index = index_of(&value);
        let compute = in_pod(&index, "/cri-containerd-<compute>.scope").unwrap();
        assert_eq!((compute.image.is_empty(), index.rejected_names()), (expected == 1, expected));
    }
}

#[test]
fn a_static_pods_hash_that_no_kubelet_makes_is_no_name() {
    let mut value = launcher("cri-o");
    value["metadata"]["annotations"]["kubernetes.io/config.hash"] = json!("f".repeat(10_000));
    let compute = in_pod(&index_of(&value), "/crio-<compute>.scope").unwrap();
    assert!(compute.name.ends_with(&format!("_{UID}_0")), "{:.99}", compute.name);
}

#[test]
fn what_decides_about_a_move_is_on_the_pod() {
    let vm_of = |annotations: Value, memory: Value| {
        let mut launcher = launcher("containerd");
        launcher["metadata"]["creationTimestamp"] = json!("2026-11-24T01:00:00Z");
        let all = launcher["metadata"]["annotations"].as_object_mut().unwrap();
        all.extend(annotations.as_object().unwrap().clone());
        launcher["spec"]["containers"] =
            json!([{"name": "compute", "resources": {"requests": {"memory": memory}}}]);
        let compute = in_pod(&index_of(&launcher), "/cri-containerd-<compute>.scope").unwrap();
        (Vm::clone(compute.vm.as_deref().unwrap()), compute.memory_request)
    };
    let mut labelled = launcher("containerd");
    labelled["metadata"]["labels"]["psi-agent.io/migrate-first"] = json!("true");
    let compute = in_pod(&index_of(&labelled), "/cri-containerd-<compute>.scope").unwrap();
    assert!(compute.vm.as_deref().unwrap().has_candidate_label);
    let (plain, memory) = vm_of(json!({}), json!("2294Mi"));
    assert_eq!(plain.created_at, "2026-11-24T01:00:00Z".parse().ok());
    assert!(!plain.prefers_no_eviction && !plain.has_candidate_label);
    assert_eq!((plain.cpu_wait_budget, memory), (None, Some(2294 * 1024 * 1024)));
    assert_eq!(vm_of(json!({}), json!("1.5G")).1, Some(1_500_000_000));
    assert_eq!(vm_of(json!({}), json!("much")).1, None);
    let stays = json!({"descheduler.alpha.kubernetes.io/prefer-no-eviction": "false"});
    assert!(vm_of(stays, json!(1)).0.prefers_no_eviction, "its presence counts, not its value");
    let budget = |text: &str| vm_of(json!({"psi-agent.io/cpu-wait-budget": text}), json!(1)).0;
    let ratio = |text: &str| budget(text).cpu_wait_budget;
    assert_eq!([ratio("5"), ratio("2.5"), ratio("0")], [Some(0.05), Some(0.025), Some(0.0)]);
    for wrong in ["", "5 %", "-1", "101", "NaN", "inf"] {
        assert_eq!(ratio(wrong), None, "{wrong}");
    }
}
