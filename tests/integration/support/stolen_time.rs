//! What others take of this machine while a test measures CPU time. The kernel counts as a process's
//! own what a hypervisor gave to somebody else meanwhile, and a CPU whose sibling works is slower.

use std::hint::black_box;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// About a tenth of a millisecond of work, again and again: a hundredth of a CPU.
const STEPS: u64 = 10_000;
const AGAIN: Duration = Duration::from_millis(10);

/// Does the same small work all the time that something else is measured.
pub(crate) struct Yardstick {
    ends: mpsc::Sender<()>,
    thread: JoinHandle<f64>,
}

impl Yardstick {
    pub(crate) fn start() -> Self {
        let (ends, ended) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let (mut least, mut sum, mut count) = (f64::INFINITY, 0.0, 0.0);
            while ended.recv_timeout(AGAIN) == Err(RecvTimeoutError::Timeout) {
                let took = cpu_seconds_of_a_piece();
                (least, sum, count) = (least.min(took), sum + took, count + 1.0);
            }
            sum / count / least
        });
        Self { ends, thread }
    }

    /// How many times the CPU time that it takes alone a piece of work was charged with, on average.
    pub(crate) fn stretch(self) -> f64 {
        drop(self.ends);
        self.thread.join().unwrap()
    }
}

/// CPU time of this thread for one piece, in seconds.
fn cpu_seconds_of_a_piece() -> f64 {
    let clock = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap());
    let start = clock();
    black_box((0..black_box(STEPS)).fold(1_u64, |sum, step| sum.rotate_left(5) ^ step));
    (clock() - start).as_secs_f64()
}
