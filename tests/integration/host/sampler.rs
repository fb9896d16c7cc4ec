//! The thread that ticks, in real time.

use std::sync::Arc;
use std::time::Duration;

use psi_agent::clock;
use psi_agent::collector::Collector;
use psi_agent::sample::Detail;
use psi_agent::sampler::Sampler;
use psi_agent::waiting::CpuSource;

use crate::support::fake_node::{EVERYTHING, FakeNode};

/// A tick that is late shortens the next one's window, so how long windows are depends on what else runs.
/// Where they begin does not.
#[test]
#[ignore = "ticks by the real clock"]
fn the_window_of_a_tick_begins_at_the_tick_before_and_not_at_a_scrape() {
    let node = FakeNode::with_pressure("windows");
    let interval = Duration::from_millis(300);
    let mut sampler =
        Sampler::start(collector(&node), tokio::sync::watch::channel(None).1, interval).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut before = sampler.next_tick().await.unwrap().moment.at;
        let mut scrapes = Vec::new();
        // For longer than a second, within which scrapes share one sample.
        for _ in 0..8 {
            scrapes.push(sampler.scrape(Detail::Exported).await.unwrap().moment.at);
            let tick = sampler.next_tick().await.unwrap();
            let window = tick.window.unwrap();
            let began = tick.moment.at - window;
            // Later than the tick before where this test missed one.
            assert!(began >= before && !scrapes.contains(&began), "{began:?}: {scrapes:?}");
            before = tick.moment.at;
        }
    });
}

/// By the real clock.
fn collector(node: &FakeNode) -> Collector {
    Collector::new(node.sources(EVERYTHING, CpuSource::Psi, 0), Arc::new(clock::now))
}
