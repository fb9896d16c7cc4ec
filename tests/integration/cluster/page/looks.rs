//! How the page looks: its width, its contrast, what axe-core finds, and the pictures for the documents.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::json;

use super::Scene;
use crate::support::agent::{Agent, BINARY};
use crate::support::browser::Browser;
use crate::support::cache_dir;

/// The least contrast of any text with what is behind it, as WCAG 2 defines it.
const LEAST_CONTRAST: &str = "(() => {
    const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = (colour) => parse(colour).slice(0, 3).map((c) => c / 255)
        .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
    const ground = (element) => {
        const colour = getComputedStyle(element).backgroundColor;
        return (parse(colour)[3] ?? 1) === 0 && element.parentElement ? ground(element.parentElement) : colour;
    };
    const hasText = (element) => element.checkVisibility() &&
        [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    const texts = [...document.body.querySelectorAll('*')].filter(hasText);
    if (texts.length < 50) throw new Error('too few texts: ' + texts.length);
    return Math.min(...texts.map((element) => {
        const pair = [getComputedStyle(element).color, ground(element)].map(light).sort();
        return (pair[1] + 0.05) / (pair[0] + 0.05);
    }));
})()";

/// Fits a phone and a desk, and is to be read by day and by night.
pub(super) fn check_looks(scene: &mut Scene) {
    let mut grounds = Vec::new();
    for scheme in ["light", "dark"] {
        for width in [400, 800, 1400] {
            scene.browser.look(width, 800, scheme);
            let wide = scene.browser.value("document.documentElement.scrollWidth");
            assert_eq!(wide, width, "{scheme}: something sticks out");
            // A table with hidden columns says so, and the headline is one line that is not cut.
            if width != 800 {
                let hint = "document.querySelector('.hint').checkVisibility()";
                scene.browser.wait_until(&format!("{hint} === {}", width == 400));
            }
            let cut = "byId('sentence').scrollWidth > byId('sentence').clientWidth";
            assert_eq!(scene.browser.value(cut), false);
        }
        let contrast = scene.browser.value(LEAST_CONTRAST).as_f64().unwrap();
        assert!(contrast >= 4.5, "{scheme}: {contrast}");
        let ground = "getComputedStyle(document.body).backgroundColor";
        grounds.push(scene.browser.value(ground));
        if std::env::var_os("UPDATE_PICTURES").is_some() {
            draw(&mut scene.browser, 1400, &format!("page-{scheme}.png"));
        }
    }
    assert_ne!(grounds[0], grounds[1]);
    if std::env::var_os("UPDATE_PICTURES").is_some() {
        // fixture::documents compares it with the binary.
        let made_with = scene.browser.value("`${seen.version} ${seen.basis}\\n`");
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pictures/page.txt");
        fs::write(path, made_with.as_str().unwrap()).unwrap();
    }
    scene.browser.look(1400, 800, "light");
}

/// axe-core finds nothing serious, with and without pressure, in light and dark mode.
pub(super) fn check_accessibility(scene: &mut Scene) {
    let build = include_str!("../../../axe/build");
    let version = build.split("version=").nth(1).unwrap().lines().next().unwrap();
    let path = cache_dir().join(format!("axe-{version}/axe.min.js"));
    let axe = fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}: run tests/axe/build", path.display()));
    scene.browser.value(&format!("{axe}; undefined"));
    scene.browser.value("document.querySelectorAll('details').forEach((it) => it.open = true)");
    for scheme in ["light", "dark"] {
        scene.browser.look(400, 800, scheme);
        scene.browser.value("byId('raw').click()");
        let found = scene.browser.value(
            "axe.run().then(({ violations, passes }) => ({ passes: passes.length, serious: violations\
             .filter(({ impact }) => ['serious', 'critical'].includes(impact))\
             .map(({ id, nodes }) => [id, nodes.map((it) => it.html)]) }))",
        );
        assert_eq!(found["serious"], json!([]), "{scheme}");
        assert!(found["passes"].as_u64().unwrap() > 15, "{found}");
    }
    scene.browser.value("document.querySelectorAll('details').forEach((it) => it.open = false)");
    scene.browser.look(1400, 800, "light");
}

/// What `top` shows of the same node, as a picture for the documents.
pub(super) fn draw_top(agent: &Agent, browser: &mut Browser) {
    let output = Command::new(BINARY)
        .args(["top", "--listen-address", &agent.address])
        .env("COLUMNS", "100")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("shop/web"), "{text}");
    browser.open("about:blank");
    browser.value(&format!(
        "document.body.innerHTML = '<pre id=main>'; document.body.style.background = '#1e1e1e'; \
         const main = document.getElementById('main'); main.textContent = {}; \
         main.style = 'color: #ddd; font: 14px/1.4 monospace; margin: 16px'",
        json!(text.trim_end())
    ));
    draw(browser, 900, "top.png");
}

/// All of the page as a picture for the documents.
fn draw(browser: &mut Browser, width: u32, name: &str) {
    let bottom = "document.getElementById('main').getBoundingClientRect().bottom";
    let height = browser.value(&format!("Math.ceil({bottom}) + 16"));
    let clip = json!({"x": 0, "y": 0, "width": width, "height": height, "scale": 1});
    let shot = json!({"format": "png", "clip": clip, "captureBeyondViewport": true});
    let shot = browser.ask("Page.captureScreenshot", shot);
    let path = format!("{}/docs/pictures/{name}", env!("CARGO_MANIFEST_DIR"));
    let mut decoder = Command::new("base64")
        .arg("-d")
        .stdin(Stdio::piped())
        .stdout(fs::File::create(&path).unwrap())
        .spawn()
        .unwrap();
    let text = shot["data"].as_str().unwrap().as_bytes();
    decoder.stdin.take().unwrap().write_all(text).unwrap();
    assert!(decoder.wait().unwrap().success());
    let size = fs::metadata(&path).unwrap().len();
    assert!(size < 200_000, "{path}: {size} bytes");
}
