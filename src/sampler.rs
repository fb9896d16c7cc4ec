//! The thread that reads: a tick every few seconds with its own pair of samples for rates, and a
//! refresh whenever somebody asks. A refresh never shortens a tick's window, and those who ask
//! within a second share one reading.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};

use crate::clock::{self, Moment};
use crate::identity::pod_index::PodIndex;
use crate::rates::{Rates, rates_between};
use crate::reader::{MIN_PRESSURE_INTERVAL, Reader};
use crate::sample::{Depth, Sample};

/// How often the agent looks by itself.
pub const TICK_INTERVAL: Duration = Duration::from_secs(5);

/// Between two refreshes that are further apart, rates would tell of the past.
const MAX_REFRESH_WINDOW: Duration = Duration::from_secs(120);

/// What a tick found.
#[derive(Debug)]
pub struct Tick {
    /// The later sample.
    pub sample: Sample,
    /// Since the tick before; `None` at the first.
    pub rates: Option<Rates>,
    /// How long the reading took.
    pub took: Duration,
}

/// What a refresh found.
#[derive(Debug, Clone)]
pub struct Refreshed {
    /// The sample, which others may have been given too.
    pub sample: Arc<Sample>,
    /// Since the refresh before, if that was of late.
    pub rates: Option<Arc<Rates>>,
    /// How long reading it took; `None` where it was shared.
    pub took: Option<Duration>,
}

/// The newest pods of this node, from whoever tells of them.
pub type Pods = watch::Receiver<Option<Arc<PodIndex>>>;

struct Request {
    depth: Depth,
    answer: oneshot::Sender<Refreshed>,
}

/// Where the rest of the program meets the thread. When all handles are dropped, it ends.
#[derive(Debug, Clone)]
pub struct Sampler {
    requests: mpsc::Sender<Request>,
    ticks: watch::Receiver<Option<Arc<Tick>>>,
}

/// The thread has ended, which only a defect makes it do.
#[derive(Debug, thiserror::Error)]
#[error("the sampling thread has ended")]
pub struct SamplerEnded;

impl Sampler {
    /// Starts the thread. It looks at the newest `pods` at each reading; `None` in there is that
    /// nobody tells of pods.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(reader: Reader, pods: Pods, tick_interval: Duration) -> std::io::Result<Self> {
        let (requests, received) = mpsc::channel();
        let (published, ticks) = watch::channel(None);
        let worker = Worker { reader, pods, published, previous: None, shared: None };
        std::thread::Builder::new()
            .name("sampler".into())
            .spawn(move || worker.run(&received, tick_interval))?;
        Ok(Self { requests, ticks })
    }

    /// A sample of at least `depth`, no older than a second.
    ///
    /// # Errors
    /// [`SamplerEnded`] when nobody is there to read.
    pub async fn refresh(&self, depth: Depth) -> Result<Refreshed, SamplerEnded> {
        let (answer, refreshed) = oneshot::channel();
        self.requests.send(Request { depth, answer }).map_err(|_| SamplerEnded)?;
        refreshed.await.map_err(|_| SamplerEnded)
    }

    /// The newest tick; `None` before the first.
    #[must_use]
    pub fn latest_tick(&self) -> Option<Arc<Tick>> {
        self.ticks.borrow().clone()
    }

    /// Waits for the next tick.
    ///
    /// # Errors
    /// [`SamplerEnded`] when there will be none.
    pub async fn next_tick(&mut self) -> Result<Arc<Tick>, SamplerEnded> {
        loop {
            self.ticks.changed().await.map_err(|_| SamplerEnded)?;
            if let Some(tick) = self.ticks.borrow_and_update().clone() {
                return Ok(tick);
            }
        }
    }
}

struct Worker {
    reader: Reader,
    pods: Pods,
    published: watch::Sender<Option<Arc<Tick>>>,
    previous: Option<Arc<Tick>>,
    shared: Option<Refreshed>,
}

impl Worker {
    fn run(mut self, requests: &Receiver<Request>, tick_interval: Duration) {
        let mut due = clock::now().at;
        loop {
            let wait = due.saturating_duration_since(clock::now().at);
            match requests.recv_timeout(wait) {
                Ok(request) => self.answer(request, requests),
                Err(RecvTimeoutError::Timeout) => {
                    self.tick();
                    due = due_after(due, clock::now().at, tick_interval);
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn read(&mut self, moment: Moment, depth: Depth) -> Sample {
        let pods = self.pods.borrow().clone();
        self.reader.sample(moment, depth, pods.as_deref())
    }

    fn tick(&mut self) {
        let moment = clock::now();
        let sample = self.read(moment, Depth::Score);
        let took = clock::now().at.saturating_duration_since(moment.at);
        let rates = self.previous.as_ref().map(|before| rates_between(&before.sample, &sample));
        let tick = Arc::new(Tick { sample, rates, took });
        self.previous = Some(Arc::clone(&tick));
        self.published.send_replace(Some(tick));
    }

    /// Answers a request and all that wait behind it with one sample.
    fn answer(&mut self, first: Request, requests: &Receiver<Request>) {
        let mut asked = vec![first];
        asked.extend(requests.try_iter());
        let depth = asked.iter().map(|request| request.depth).max().unwrap_or(Depth::Exported);
        let moment = clock::now();
        let age = |sample: &Sample| moment.at.saturating_duration_since(sample.moment.at);
        let before = self.shared.take();
        let usable = |before: &&Refreshed| {
            before.sample.depth >= depth && age(&before.sample) < MIN_PRESSURE_INTERVAL
        };
        let mut refreshed = match before.as_ref().filter(usable) {
            Some(before) => Refreshed { took: None, ..before.clone() },
            None => {
                let sample = Arc::new(self.read(moment, depth));
                let took = clock::now().at.saturating_duration_since(moment.at);
                Refreshed { rates: rates_since(before, &sample), sample, took: Some(took) }
            }
        };
        self.shared = Some(refreshed.clone());
        for request in asked {
            // Who asked may have hung up since.
            let _ = request.answer.send(refreshed.clone());
            refreshed.took = None;
        }
    }
}

/// When the tick after the one that was due then, and has been made by `now`, is due. Ticks that a
/// suspended machine missed are not made up for; and of a window that is much shorter than the
/// others, who ran in it and who waited would be chance.
fn due_after(due: Instant, now: Instant, tick_interval: Duration) -> Instant {
    (due + tick_interval).max(now + tick_interval / 2)
}

/// Rates since the refresh before. One that came too soon after it has those of before.
fn rates_since(before: Option<Refreshed>, sample: &Sample) -> Option<Arc<Rates>> {
    let before = before?;
    let window = sample.moment.at.saturating_duration_since(before.sample.moment.at);
    if window < MIN_PRESSURE_INTERVAL {
        return before.rates;
    }
    (window <= MAX_REFRESH_WINDOW).then(|| Arc::new(rates_between(&before.sample, sample)))
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
        // One that was a little late changes nothing; one that was very late, all that come.
        assert_eq!([0.0, 0.1, 2.5].map(after), [5.0; 3]);
        assert_eq!([4.9, 60.0].map(after), [7.4, 62.5]);
    }
}
