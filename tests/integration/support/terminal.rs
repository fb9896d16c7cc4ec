//! A real terminal, by tmux.

use std::process::Command;
use std::time::Duration;

use super::folder::Folder;
use super::wait_for;

/// Many times what anything on a screen takes, also on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A terminal of its own, on a server of its own.
pub(crate) struct Terminal {
    socket: String,
    /// Its own, for what a script leaves.
    pub(crate) folder: Folder,
}

impl Terminal {
    /// Runs a shell script in 100 columns and 24 rows.
    pub(crate) fn start(name: &str, script: &str) -> Self {
        Self::start_wide(name, 100, script)
    }

    /// The same in so many columns.
    pub(crate) fn start_wide(name: &str, columns: u16, script: &str) -> Self {
        let socket = format!("psi-agent-test-{}-{name}", std::process::id());
        let folder = Folder::new(name);
        let terminal = Self { socket, folder };
        let size = ["-x", &columns.to_string(), "-y", "24"];
        let start = [&["-f", "/dev/null", "new-session", "-d"][..], &size, &[script]].concat();
        terminal.tmux(&start);
        terminal
    }

    pub(crate) fn tmux(&self, arguments: &[&str]) -> String {
        let output = Command::new("tmux")
            .args(["-L", &self.socket])
            .args(arguments)
            .output()
            .expect("this test needs tmux");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "tmux {arguments:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.tmux(&["capture-pane", "-p"]).lines().map(str::to_owned).collect()
    }

    /// Waits until the screen is as wanted.
    pub(crate) fn wait_for(&self, what: &str, is_so: impl Fn(&[String]) -> bool) -> Vec<String> {
        let lines = || self.lines();
        wait_for(what, LIMIT, || Some(lines()).filter(|lines| is_so(lines)))
    }

    pub(crate) fn told(&self, what: &str) -> String {
        self.tmux(&["display-message", "-p", what]).trim().to_owned()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = Command::new("tmux").args(["-L", &self.socket, "kill-server"]).output();
    }
}
