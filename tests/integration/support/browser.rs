//! A headless Chromium, told by the DevTools protocol what to do: messages of JSON, each ended by a
//! zero byte, through its descriptors 3 and 4.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Many times what anything here takes.
const LIMIT: Duration = Duration::from_secs(180);

/// The browser with one page, ended when dropped.
pub(crate) struct Browser {
    child: Child,
    to: ChildStdin,
    messages: Receiver<Value>,
    /// What happened that nobody asked for.
    events: Vec<Value>,
    asked: u64,
    session: Option<String>,
    profile: PathBuf,
}

impl Browser {
    /// Starts it with an empty profile and an empty page.
    pub(crate) fn start(name: &str) -> Self {
        let profile = std::env::temp_dir().join(format!("psi-agent-{}-{name}", std::process::id()));
        let mut child = Command::new("sh")
            .args(["-c", "exec chromium \"$@\" 3<&0 4>&1 0</dev/null 1>&2", "sh"])
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            // Nothing but the page goes to the network.
            .args(["--no-first-run", "--disable-background-networking", "--disable-sync"])
            .args(["--disable-component-update", "--disable-default-apps", "--hide-scrollbars"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .args(["--remote-debugging-pipe", "about:blank"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell starts");
        let to = child.stdin.take().unwrap();
        let from = BufReader::new(child.stdout.take().unwrap());
        let (sender, messages) = mpsc::channel();
        std::thread::spawn(move || {
            let texts = from.split(0).map_while(Result::ok);
            let parsed = texts.map_while(|text| serde_json::from_slice(&text).ok());
            parsed.map_while(|message| sender.send(message).ok()).for_each(drop);
        });
        let (events, session) = (Vec::new(), None);
        let mut browser = Self { child, to, messages, events, asked: 0, session, profile };
        let targets = browser.ask("Target.getTargets", json!({}));
        let targets = targets["targetInfos"].as_array().unwrap();
        let page = targets.iter().find(|target| target["type"] == "page").expect("a page");
        let target = json!({"targetId": page["targetId"], "flatten": true});
        let attached = browser.ask("Target.attachToTarget", target);
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.ask(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Calls a method; answers its result.
    pub(crate) fn ask(&mut self, method: &str, parameters: Value) -> Value {
        self.asked += 1;
        let mut message = json!({"id": self.asked, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.to
            .write_all(format!("{message}\0").as_bytes())
            .expect("Chromium listens: this test needs Debian's package chromium");
        let start = Instant::now();
        loop {
            let left = LIMIT.saturating_sub(start.elapsed());
            let heard = self.messages.recv_timeout(left).unwrap_or_else(|error| {
                panic!("{method}: {error} (is Debian's package chromium installed?)")
            });
            if heard["id"] == self.asked {
                assert!(heard["error"].is_null(), "{method}: {}", heard["error"]);
                return heard["result"].clone();
            }
            self.events.push(heard);
        }
    }

    /// What happened by itself so far, by the method that tells of it.
    pub(crate) fn events(&mut self, method: &str) -> Vec<&Value> {
        self.events.extend(self.messages.try_iter());
        self.events.iter().filter(|event| event["method"] == method).collect()
    }

    pub(crate) fn forget_events(&mut self) {
        self.events("").clear();
        self.events.clear();
    }

    /// The value of an expression in the page; of a promise, once it is fulfilled.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let parameters =
            json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let result = self.ask("Runtime.evaluate", parameters);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub(crate) fn wait_until(&mut self, expression: &str) {
        let start = Instant::now();
        while self.value(expression) != true {
            let text = |browser: &mut Self| browser.value("document.body.innerText");
            assert!(start.elapsed() < LIMIT, "not yet {expression}: {}", text(self));
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub(crate) fn open(&mut self, address: &str) {
        self.ask("Page.navigate", json!({"url": address}));
        self.wait_until("document.readyState === 'complete'");
    }

    /// The size of the window, and which colours its user prefers.
    pub(crate) fn look(&mut self, width: u32, height: u32, scheme: &str) {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.ask("Emulation.setDeviceMetricsOverride", size);
        let scheme = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.ask("Emulation.setEmulatedMedia", scheme);
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its own processes end with the pipe.
        let _ = self.to.write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        let start = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && start.elapsed() < Duration::from_secs(10)
        {
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.profile);
    }
}
