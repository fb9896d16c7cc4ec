use super::*;
use proptest::prelude::*;

const UID: &str = "1234abcd-0000-1111-2222-333344445555";
const UID_: &str = "1234abcd_0000_1111_2222_333344445555";
const HASH: &str = "0123456789abcdef0123456789abcdef";
const CID: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// Replaces `<u_>`, `<u>`, `<hash>`, `<cid>` and the shorthands of the systemd driver.
fn expand(pattern: &str) -> String {
    pattern
        .replace(
            "KB/",
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<u_>.slice/",
        )
        .replace(
            "KE/",
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod<u_>.slice/",
        )
        .replace("KG/", "/kubepods.slice/kubepods-pod<u_>.slice/")
        .replace("<u_>", UID_)
        .replace("<u>", UID)
        .replace("<hash>", HASH)
        .replace("<cid>", CID)
}

fn describe(place: &Place) -> String {
    let Place::Pod(pod) = place else {
        return format!("{place:?}");
    };
    if let PodLevel::Container(id) = &pod.level {
        assert_eq!(&**id, CID);
    }
    let level: &str = (&pod.level).into();
    let uid = match &*pod.uid {
        UID => "",
        HASH => "static ",
        other => panic!("wrong uid {other}"),
    };
    format!("{uid}{level}")
}

fn check(pattern: &str, expected: &str) {
    let path = expand(pattern);
    assert_eq!(describe(&Place::of_path(&path)), expected, "{path}");
}

#[test]
fn paths_of_the_systemd_driver_are_recognized() {
    check("KG/", "pod");
    check("KB/", "pod");
    check("KE/", "pod");
    check("KE/cri-containerd-<cid>.scope", "container");
    check("KE/docker-<cid>.scope", "container");
    check("KE/<cid>", "container");
}

#[test]
fn cri_o_has_sandboxes_monitors_and_nested_cgroups() {
    check("KB/crio-<cid>.scope", "container");
    check("KB/crio-<cid>.scope/container", "other");
    check("KG/crio-<cid>.scope/housekeeping", "other");
    check("KG/crio-<cid>.scope/container/housekeeping", "other");
    check("KB/crio-<cid>", "other");
    check("KB/crio-conmon-<cid>.scope", "other");
    check("KB/crio-conmon-<cid>", "other");
    check("/kubepods/pod<u>/crio-<cid>", "container");
    check("/kubepods/pod<u>/crio-<cid>.scope", "container");
}

#[test]
fn paths_of_the_cgroupfs_driver_are_recognized() {
    check("/kubepods/pod<u>", "pod");
    check("/kubepods/besteffort/pod<u>/<cid>", "container");
    check("/kubelet/kubepods/burstable/pod<u>/<cid>", "container");
}

#[test]
fn the_uid_of_a_static_pod_is_the_hash_of_its_manifest() {
    check("/kubepods/besteffort/pod<hash>/<cid>", "static container");
    check(
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<hash>.slice/cri-containerd-<cid>.scope",
        "static container",
    );
}

#[test]
fn the_colon_form_is_pod_and_container_in_one() {
    let colon = "kubepods-burstable-pod<u_>.slice:cri-containerd:<cid>";
    check(&format!("/system.slice/containerd.service/{colon}"), "container");
    check(&format!("/{colon}"), "container");
    check(&format!("/{colon}/container"), "other");
}

#[test]
fn pods_are_recognized_below_another_root() {
    check("/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod<u_>.slice", "pod");
    check(
        "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod<u_>.slice/cri-containerd-<cid>.scope",
        "container",
    );
    check(
        "/my_root.slice/my_root-kubepods.slice/my_root-kubepods-pod<u_>.slice/crio-<cid>.scope",
        "container",
    );
    check("/docker/<cid>/kubepods/burstable/pod<u>/<cid>", "container");
    check(
        "/system.slice/docker-<cid>.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod<u_>.slice/cri-containerd-<cid>.scope",
        "container",
    );
}

#[test]
fn other_cgroups_are_of_the_host() {
    check("/", "Root");
    for host in [
        "/kubepods.slice",
        "/kubepods.slice/kubepods-burstable.slice",
        "/kubepods",
        "/kubepods/burstable",
        "/system.slice/system-systemd\\x2dcoredump.slice",
        "/machine.slice/libpod-<cid>.scope",
        "/system.slice/crio-conmon-<cid>.scope",
        "/podman",
        "/other/pod<u>",
        "/kubepods/other/pod<u>",
        "/kubepods.slice/mykubepods-pod<u_>.slice",
    ] {
        check(host, "Host");
    }
}

#[test]
fn an_unknown_cgroup_in_a_pod_is_no_container() {
    check("KB/crio-0123.scope", "other");
    check("KB/cri-containerd-<cid>", "other");
    check("KB/other.scope/below", "other");
    check("KB/crio-conmon-<cid>.scope/below", "other");
}

proptest! {
    #[test]
    fn no_path_causes_a_panic(path: String) {
        let _ = Place::of_path(&path);
    }

    #[test]
    fn both_drivers_give_the_same_uid(uid in "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}") {
        let systemd = format!("/kubepods.slice/kubepods-pod{}.slice", uid.replace('-', "_"));
        for path in [systemd, format!("/kubepods/pod{uid}")] {
            let Place::Pod(pod) = Place::of_path(&path) else { panic!("{path} is a pod") };
            prop_assert_eq!(&*pod.uid, &*uid);
        }
    }
}
