//! The lab: a boot of Debian's kernel under QEMU's emulator with an initramfs of busybox, the
//! static binary and a guest script of `tests/lab`. Out comes what the script showed.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use super::cache_dir;

const REPOSITORY: &str = env!("CARGO_MANIFEST_DIR");

/// Many times what a boot takes, also on a machine that is busy: only a guest that hangs gets there.
const BOOT_LIMIT: Duration = Duration::from_secs(600);

const DISK_BYTES: u64 = 256 << 20;

/// Without cx16: QEMU 7.2 emulates cmpxchg16b wrongly, and the guest faults in its allocator.
/// With icount the guest's clock follows its instructions: a busy host delays it, but does not
/// change what it measures, and its sleeps take no time.
const MACHINE: &str = "-accel tcg,thread=single -icount shift=3,sleep=off \
                       -rtc base=2025-01-01,clock=vm -cpu max,-cx16 -M q35 -m 1G -smp 4 \
                       -nodefaults -no-user-config -display none -no-reboot";

/// What a command showed in the guest.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) exit_code: i32,
    pub(crate) text: String,
}

/// Everything that a guest script showed, by name.
pub(crate) struct Sections(BTreeMap<String, Section>);

impl Sections {
    /// The output of the section, whose command must have ended with this exit code.
    pub(crate) fn text(&self, name: &str, exit_code: i32) -> &str {
        let section = self.0.get(name).unwrap_or_else(|| {
            panic!("the guest showed no {name}, but {:?}", self.0.keys());
        });
        assert_eq!(section.exit_code, exit_code, "{name}: {}\n{self:?}", section.text);
        &section.text
    }

    /// What commands wrote to stderr is a section of its own where there is any.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// `=== name exit-code`, lines, `=== end`. `None` without `=== done`.
    fn parse(console: &str) -> Option<Self> {
        let mut sections = BTreeMap::new();
        let mut open: Option<(String, Section)> = None;
        for line in console.lines() {
            // The terminal ends its lines by CR LF.
            let line = line.trim_end_matches('\r');
            match line.strip_prefix("=== ") {
                Some("done") => return Some(Self(sections)),
                Some("end") => sections.extend(open.take()),
                Some(begin) => {
                    let (name, exit_code) = begin.split_once(' ').expect("a name and exit code");
                    let exit_code = exit_code.parse().expect("an exit code");
                    open = Some((name.to_owned(), Section { exit_code, text: String::new() }));
                }
                None => {
                    if let Some((_, section)) = &mut open {
                        section.text.extend([line, "\n"]);
                    }
                }
            }
        }
        None
    }
}

impl std::fmt::Debug for Sections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut errors = self.0.iter().filter(|(name, _)| name.ends_with(".stderr"));
        errors.try_for_each(|(name, section)| write!(f, "{name}: {}", section.text))
    }
}

/// Boots with this agent and with `psi=` on the kernel's command line, and runs the guest script.
pub(crate) fn boot(binary: &Path, script: &str, psi: u8) -> Sections {
    boot_with(binary, script, &format!("psi={psi}"), None)
}

/// The same with these parameters, and with a file that the script finds as `/policy`.
pub(crate) fn boot_with(
    binary: &Path,
    script: &str,
    parameters: &str,
    policy: Option<&Path>,
) -> Sections {
    let lab = Folder::new(script);
    let initramfs = lab.0.join("initramfs.gz");
    make_initramfs(&lab.0.join("root"), binary, script, policy, &initramfs);
    let first = run(&lab.0, &initramfs, parameters);
    // The emulator itself may fail; a guest that hangs or a wrong number is no reason to repeat.
    Sections::parse(&first).unwrap_or_else(|| {
        let second = run(&lab.0, &initramfs, parameters);
        Sections::parse(&second).unwrap_or_else(|| {
            panic!("{script}: the guest ended early, twice: {first}\n--- and ---\n{second}")
        })
    })
}

/// The static binary that is shipped; the guest has no libraries.
pub(crate) fn static_binary() -> PathBuf {
    let built = Path::new(REPOSITORY).join("target/x86_64-unknown-linux-gnu/dist/psi-agent");
    let binary = std::env::var_os("PSI_AGENT_STATIC_BINARY").map_or(built, PathBuf::from);
    assert!(
        binary.is_file(),
        "{} is missing; build it: RUSTFLAGS=\"-C target-feature=+crt-static\" cargo build \
         --profile dist --target x86_64-unknown-linux-gnu --locked",
        binary.display()
    );
    binary
}

/// A folder below target/, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let path = path.join(format!("lab-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn make_initramfs(
    root: &Path,
    binary: &Path,
    script: &str,
    policy: Option<&Path>,
    initramfs: &Path,
) {
    let own = Path::new(REPOSITORY).join("tests/lab");
    let above = root.parent().unwrap();
    make_folders(above, &Path::new(root.file_name().unwrap()).join("bin"));
    let copy = |from: &Path, to: &str, mode| {
        let to = root.join(to);
        fs::copy(from, &to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
        fs::set_permissions(to, Permissions::from_mode(mode)).unwrap();
    };
    copy(Path::new("/bin/busybox"), "bin/busybox", 0o755);
    let agent = root.join("bin/psi-agent");
    // Debug information is most of a binary that cargo makes for tests.
    run_to_end(Command::new("strip").arg("-o").arg(&agent).arg(binary));
    fs::set_permissions(&agent, Permissions::from_mode(0o755)).unwrap();
    for library in libraries_of(binary) {
        let to = library.strip_prefix("/").unwrap();
        make_folders(root, to.parent().unwrap());
        copy(&library, to.to_str().unwrap(), 0o755);
    }
    copy(&own.join("init"), "init", 0o755);
    copy(&own.join(format!("{script}.sh")), "guest.sh", 0o644);
    if let Some(policy) = policy {
        copy(policy, "policy", 0o644);
    }
    symlink("busybox", root.join("bin/sh")).unwrap();
    let pack = "find . | cpio -o -H newc -R 0:0 --quiet | gzip -1 >\"$0\"";
    let mut packing = Command::new("bash");
    run_to_end(packing.args(["-o", "pipefail", "-c", pack]).arg(initramfs).current_dir(root));
}

fn run_to_end(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
}

/// The shared libraries that a binary is loaded with, and the loader; none of a static one.
fn libraries_of(binary: &Path) -> Vec<PathBuf> {
    let listed = Command::new("ldd").arg(binary).output().expect("this test needs ldd");
    let listed = String::from_utf8(listed.stdout).unwrap();
    let paths = listed.split_whitespace().filter(|word| word.starts_with('/'));
    paths.filter(|path| !path.ends_with(':')).map(PathBuf::from).collect()
}

/// Makes folders below the guest's root, all of 0755: with less, its unprivileged users could open
/// nothing.
fn make_folders(root: &Path, folders: &Path) {
    let mut path = root.to_owned();
    for folder in folders {
        path.push(folder);
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    }
}

/// One run of QEMU; answers what came out of the guest's serial port.
fn run(folder: &Path, initramfs: &Path, parameters: &str) -> String {
    let kernel = cache_dir().join("lab/vmlinuz");
    assert!(kernel.exists(), "{} is missing: run tests/lab/prepare", kernel.display());
    let [disk, console] = ["disk", "console"].map(|name| folder.join(name));
    File::create(&disk).unwrap().set_len(DISK_BYTES).unwrap();
    let child = Command::new("qemu-system-x86_64")
        .args(MACHINE.split_whitespace())
        .arg("-serial")
        .arg(format!("file:{}", console.display()))
        .arg("-drive")
        .arg(format!("if=none,id=disk,format=raw,cache=unsafe,file={}", disk.display()))
        .args(["-device", "nvme,drive=disk,serial=lab", "-append"])
        .arg(format!("console=ttyS0 {parameters} panic=-1 quiet loglevel=0"))
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(initramfs)
        .spawn()
        .expect("qemu-system-x86_64 starts: run tests/lab/prepare");
    let read = || fs::read(&console).unwrap_or_default();
    let shown = || String::from_utf8_lossy(&read()).into_owned();
    let ended = Machine(child).wait();
    assert!(ended.is_some(), "the guest did not power off within {BOOT_LIMIT:?}: {}", shown());
    shown()
}

/// A running QEMU, killed when dropped.
struct Machine(Child);

impl Machine {
    /// `None` when it has not ended in time.
    fn wait(&mut self) -> Option<ExitStatus> {
        let start = Instant::now();
        while start.elapsed() < BOOT_LIMIT {
            if let Some(status) = self.0.try_wait().unwrap() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        None
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
