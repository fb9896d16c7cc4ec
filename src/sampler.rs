//! The sampling thread: a tick every few seconds with its own pair of samples for rates, and a scrape
//! for each request. A scrape never shortens a tick's window, and requests within a second share
//! one sample.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};

use crate::clock;
use crate::collector::{Collector, MIN_PRESSURE_INTERVAL};
use crate::identity::pod_index::PodIndex;
use crate::sample::{Detail, ScrapeSample, Tick};

/// Time between two ticks.
pub const TICK_INTERVAL: Duration = Duration::from_secs(5);

/// Time until the first score: a first sample, and 30 s of windows.
pub const WARM_UP: Duration = TICK_INTERVAL.saturating_mul(7);

/// Latest list of pods of this node; `None` without a source of pods.
pub type Pods = watch::Receiver<Option<Arc<PodIndex>>>;

/// What is to be read at least, and where the sample goes.
type Request = (Detail, oneshot::Sender<Arc<ScrapeSample>>);

/// A handle of the thread. When all handles are dropped, the thread ends.
#[derive(Debug, Clone)]
pub struct Sampler {
    requests: mpsc::Sender<Request>,
    ticks: watch::Receiver<Option<Arc<Tick>>>,
}

/// The thread has ended, which is a defect.
#[derive(Debug, thiserror::Error)]
#[error("the sampling thread has ended")]
pub struct SamplerEnded;

impl Sampler {
    /// Starts the thread. Each pass uses the latest `pods`.
    pub fn start(
        collector: Collector,
        pods: Pods,
        tick_interval: Duration,
    ) -> std::io::Result<Self> {
        let (requests, received) = mpsc::channel();
        let (published, ticks) = watch::channel(None);
        let worker = Worker { collector, pods, published, shared: None };
        std::thread::Builder::new()
            .name("sampler".into())
            .spawn(move || worker.run(&received, tick_interval))?;
        Ok(Self { requests, ticks })
    }

    /// A sample of at least `detail`, no older than a second.
    pub async fn scrape(&self, detail: Detail) -> Result<Arc<ScrapeSample>, SamplerEnded> {
        let (answer, scraped) = oneshot::channel();
        self.requests.send((detail, answer)).map_err(|_| SamplerEnded)?;
        scraped.await.map_err(|_| SamplerEnded)
    }

    /// The newest tick; `None` before the first.
    pub fn latest_tick(&self) -> Option<Arc<Tick>> {
        self.ticks.borrow().clone()
    }

    pub async fn next_tick(&mut self) -> Result<Arc<Tick>, SamplerEnded> {
        self.ticks.changed().await.map_err(|_| SamplerEnded)?;
        // What is sent is always a tick.
        self.ticks.borrow_and_update().clone().ok_or(SamplerEnded)
    }
}

struct Worker {
    collector: Collector,
    pods: Pods,
    published: watch::Sender<Option<Arc<Tick>>>,
    /// The latest sample.
    shared: Option<Arc<ScrapeSample>>,
}

impl Worker {
    fn run(mut self, requests: &Receiver<Request>, tick_interval: Duration) {
        let mut due = clock::now().at;
        loop {
            let wait = due.saturating_duration_since(clock::now().at);
            // First, since requests may come as fast as they are answered.
            if wait.is_zero() {
                let pods = self.pods.borrow().clone();
                let tick = self.collector.tick(pods.as_deref());
                self.published.send_replace(Some(Arc::new(tick)));
                due = due_after(due, clock::now().at, tick_interval);
                continue;
            }
            match requests.recv_timeout(wait) {
                Ok(request) => self.answer(request, requests),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Responds to a request, and to all requests in the queue, with one sample.
    fn answer(&mut self, first: Request, requests: &Receiver<Request>) {
        let mut asked = vec![first];
        asked.extend(requests.try_iter());
        let detail = asked.iter().map(|(detail, _)| *detail).max().unwrap_or(Detail::Exported);
        let now = clock::now().at;
        let is_usable = |earlier: &Arc<ScrapeSample>| {
            let age = now.saturating_duration_since(earlier.moment.at);
            earlier.detail >= detail && age < MIN_PRESSURE_INTERVAL
        };
        // Another one is freed before a new one needs as much memory.
        let earlier = self.shared.take().filter(is_usable);
        let sample = earlier.unwrap_or_else(|| {
            let pods = self.pods.borrow().clone();
            Arc::new(self.collector.scrape(detail, pods.as_deref()))
        });
        self.shared = Some(Arc::clone(&sample));
        for (_, answer) in asked {
            // The client may have disconnected since.
            let _ = answer.send(Arc::clone(&sample));
        }
    }
}

/// When the next tick is due, after the one that was due at `due` and ended at `now`. Ticks that a
/// suspended machine missed are skipped. At least half an interval passes between two ticks, since
/// rates of a much shorter window are noise.
fn due_after(due: Instant, now: Instant, tick_interval: Duration) -> Instant {
    (due + tick_interval).max(now + tick_interval / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_tick_is_neither_made_up_for_nor_followed_at_once() {
        let due = clock::now().at;
        let after = |late: f64| {
            let next = due_after(due, due + Duration::from_secs_f64(late), TICK_INTERVAL);
            (next - due).as_secs_f64()
        };
        // A tick that is a little late does not move the next one. A tick that is very late moves
        // all later ones.
        assert_eq!([0.0, 0.1, 2.5].map(after), [5.0; 3]);
        assert_eq!([4.9, 60.0].map(after), [7.4, 62.5]);
    }
}
