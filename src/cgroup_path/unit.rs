//! Parses the name of a systemd unit in a cgroup's path.

/// A service or scope of systemd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// Its name, unescaped, with its suffix.
    pub name: String,
    /// Name of the VM that it runs: by libvirt, or by Proxmox, where it is a number.
    pub vm: Option<String>,
}

impl Unit {
    /// The unit that this cgroup belongs to, not one below it. `None` for slices, and for cgroups
    /// that systemd does not manage.
    pub fn of_path(path: &str) -> Option<Self> {
        let (parents, name) = path.rsplit_once('/')?;
        if !name.ends_with(".service") && !name.ends_with(".scope") {
            return None;
        }
        let name = unescaped(name);
        let scope = name.strip_suffix(".scope");
        let vm = scope.and_then(|scope| libvirt_vm(scope).or_else(|| proxmox_vm(parents, scope)));
        Some(Self { vm: vm.map(str::to_owned), name })
    }
}

/// Libvirt names scopes `machine-qemu-<number>-<name>`, by systemd-machined.
fn libvirt_vm(scope: &str) -> Option<&str> {
    let (number, name) = scope.strip_prefix("machine-qemu-")?.split_once('-')?;
    (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())).then_some(name)
}

/// Proxmox names scopes by the number of the VM.
fn proxmox_vm<'a>(parents: &str, scope: &'a str) -> Option<&'a str> {
    let is_number = !scope.is_empty() && scope.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && parents.rsplit('/').next() == Some("qemu.slice")).then_some(scope)
}

/// Replaces `\x2d` and other escaped bytes. Others than ASCII stay escaped.
fn unescaped(name: &str) -> String {
    let mut parts = name.split("\\x");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..2).and_then(|code| u8::from_str_radix(code, 16).ok());
        match (code.filter(u8::is_ascii), part.get(2..)) {
            (Some(byte), Some(rest)) => {
                text.extend([char::from(byte)].into_iter().chain(rest.chars()))
            }
            _ => text.extend(["\\x", part]),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_vms_are_recognized_by_their_names() {
        let vm = |path| Unit::of_path(path).map(|unit| unit.vm);
        let some = |name: &str| Some(Some(name.to_owned()));
        assert_eq!(vm(r"/machine.slice/machine-qemu\x2d3\x2dweb\x2d1.scope"), some("web-1"));
        assert_eq!(vm("/qemu.slice/100.scope"), some("100"));
        assert_eq!(vm(r"/machine.slice/machine-lxc\x2d3\x2dweb.scope"), Some(None));
        assert_eq!(vm("/user.slice/100.scope"), Some(None));
        assert_eq!(vm(r"/machine.slice/machine-qemu\x2d3\x2dweb.scope/libvirt/vcpu0"), None);
    }

    #[test]
    fn services_and_scopes_have_their_names_and_slices_have_none() {
        let name = |path| Unit::of_path(path).map(|unit| unit.name);
        assert_eq!(name("/system.slice/ssh.service").as_deref(), Some("ssh.service"));
        let user = name(r"/user.slice/user-0.slice/run-u7\x2dé\xzz\x.scope");
        assert_eq!(user.as_deref(), Some(r"run-u7-é\xzz\x.scope"));
        assert_eq!([name("/system.slice"), name("/docker/1111"), name("/")], [None, None, None]);
    }
}
