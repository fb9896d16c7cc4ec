//! The real binary, serving on a free port of loopback, ended when dropped.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_psi-agent");

/// A running agent.
pub(crate) struct Agent {
    pub(crate) child: Child,
    pub(crate) address: String,
    log: Arc<Mutex<String>>,
}

impl Agent {
    /// Starts the agent with more flags, and waits until it says where it serves.
    pub(crate) fn start(flags: &[&str]) -> Self {
        Self::start_by(Command::new(BINARY), flags)
    }

    /// The same, with another command in front (`unshare …` and its kind).
    pub(crate) fn start_by(command: Command, flags: &[&str]) -> Self {
        Self::start_at("127.0.0.1:0", command, flags)
    }

    /// The same, listening elsewhere: on another address of loopback, or in a network of its own.
    pub(crate) fn start_at(address: &str, mut command: Command, flags: &[&str]) -> Self {
        let mut child = command
            .args(flags)
            .args(["--listen-address", address, "--log-format", "text"])
            .stderr(Stdio::piped())
            .spawn()
            .expect("the agent starts");
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        let address = loop {
            let mut line = String::new();
            let length = log.read_line(&mut line).unwrap();
            assert!(length > 0, "the agent ended before it served: {said}");
            said += &line;
            let address = line.split_once("http://").or_else(|| line.split_once("https://"));
            if let Some((_, rest)) = address {
                break rest.split('/').next().unwrap().to_owned();
            }
        };
        // Somebody has to read on, or the agent's log blocks it.
        let kept = Arc::new(Mutex::new(said));
        let keep = Arc::clone(&kept);
        std::thread::spawn(move || {
            let lines = log.lines().map_while(Result::ok);
            lines.for_each(|line| keep.lock().unwrap().push_str(&format!("{line}\n")));
        });
        Self { child, address, log: kept }
    }

    /// Another server that can do what an agent can; its log is its own.
    pub(crate) fn other(child: Child, address: String) -> Self {
        Self { child, address, log: Arc::default() }
    }

    /// What it has logged so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// The body of `GET path`, which must answer 200.
    pub(crate) fn get(&self, path: &str) -> String {
        let answer = self.request(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n"));
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.text()
    }

    /// Sends request lines and headers as they are (each ended by CRLF), asking for no keep-alive.
    pub(crate) fn request(&self, head: &str) -> Answer {
        get_from(&self.address, head).expect("the agent answers")
    }

    /// The most memory that it had at once, in bytes.
    pub(crate) fn peak_memory(&self) -> f64 {
        let status = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(status).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() * 1024.0
    }

    /// Sends a signal by its name, such as `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap();
        assert!(sent.success());
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the agent at {} logged:\n{}", self.address, self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The same, of any server.
pub(crate) fn get_from(address: &str, head: &str) -> std::io::Result<Answer> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes())?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    Ok(Answer::parse(&bytes))
}

/// An answer, its chunks put together.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("an HTTP answer");
        let headers = String::from_utf8(bytes[..end].to_vec()).unwrap().to_ascii_lowercase();
        let status = headers.split(' ').nth(1).unwrap().parse().unwrap();
        let mut rest = &bytes[end + 4..];
        let mut body = Vec::new();
        if headers.contains("transfer-encoding: chunked") {
            loop {
                let line_end = rest.windows(2).position(|two| two == b"\r\n").expect("a chunk");
                let size = std::str::from_utf8(&rest[..line_end]).unwrap();
                let size = usize::from_str_radix(size, 16).unwrap();
                rest = &rest[line_end + 2..];
                if size == 0 {
                    break;
                }
                body.extend_from_slice(&rest[..size]);
                rest = &rest[size + 2..];
            }
        } else {
            body.extend_from_slice(rest);
        }
        Self { status, headers, body }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}
