//! The threads of one container below the host's `/proc`: their time run and run delay.
//!
//! A container is *hidden*, and its run delay is unknown, unless all of its threads can be read.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::kernel::ReadError;
use crate::kernel::process_dir::{TaskDir, TaskId};
use crate::kernel::task_text::{TaskTimes, ThreadKind};
use crate::waiting::files::Files;
use crate::waiting::readings::{ThreadReading, Threads};
use crate::waiting::series::{Reading, Window};

/// Age until which a container may still start processes, and a process may still rename threads.
const YOUNG: Duration = Duration::from_secs(60);

/// The processes of one container.
#[derive(Debug, Default)]
pub(super) struct ContainerThreads {
    pub(super) since: Option<Instant>,
    pub(super) hidden: bool,
    /// Whether a known thread ended: others may have replaced it.
    pub(super) ended: bool,
    pub(super) processes: HashMap<TaskId, Process>,
}

#[derive(Debug)]
pub(super) struct Process {
    dir: TaskDir,
    threads: HashMap<TaskId, Thread>,
}

#[derive(Debug, Default)]
struct Thread {
    kind: ThreadKind,
    /// `None` for a thread that is not read.
    dir: Option<TaskDir>,
    times: Window<TaskTimes>,
    was_runnable: bool,
    /// When it was listed first.
    since: Option<Instant>,
}

pub(super) fn is_young(since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) < YOUNG
}

impl ContainerThreads {
    /// Adds a process, whose threads are not listed yet.
    pub(super) fn add(&mut self, id: TaskId, dir: TaskDir) {
        self.processes.insert(id, Process { dir, threads: HashMap::new() });
    }

    fn threads(&self) -> impl Iterator<Item = &Thread> {
        self.processes.values().flat_map(|process| process.threads.values())
    }

    /// Whether a vCPU thread is known.
    pub(super) fn has_vcpus(&self) -> bool {
        self.threads().any(|thread| thread.kind == ThreadKind::Vcpu)
    }

    /// Handles that are kept open.
    pub(super) fn handles(&self) -> usize {
        self.processes.len() + self.threads().filter(|thread| thread.dir.is_some()).count()
    }

    /// Updates the threads of all processes. Returns whether all could be read. Besides vCPUs and the
    /// I/O threads beside them, threads are kept only in a container without vCPUs, and with
    /// `all_threads`.
    pub(super) fn list(&mut self, all_threads: bool, files: &mut Files, now: Instant) -> bool {
        let known_errors = files.errors.len();
        self.processes.retain(|_, process| match process.list(files, now) {
            Err(error) if error.is_vanished() => false,
            listed => {
                files.note(listed);
                true
            }
        });
        let has_vcpus = self.has_vcpus();
        let is_kept = |kind| match kind {
            ThreadKind::Vcpu => true,
            ThreadKind::Iothread => has_vcpus || all_threads,
            ThreadKind::Other => !has_vcpus && all_threads,
        };
        let threads = self.processes.values_mut().flat_map(|one| one.threads.values_mut());
        threads.filter(|thread| !is_kept(thread.kind)).for_each(|thread| thread.dir = None);
        files.errors.len() == known_errors
    }

    /// Reads the threads that were kept by [`ContainerThreads::list`].
    /// `may_wait` is false if its CPU pressure shows that no task waited.
    pub(super) fn read(&mut self, may_wait: bool, files: &mut Files) -> Threads {
        if self.since.is_none() {
            return Threads::NotRead;
        }
        if self.hidden {
            // Their next window would span all the time in which they were.
            let threads = self.processes.values_mut().flat_map(|one| one.threads.values_mut());
            threads.for_each(|thread| thread.times.push(None));
            return Threads::Hidden;
        }
        // In a container without vCPUs, they are threads like others.
        let has_vcpus = self.has_vcpus();
        let (mut threads, mut iothreads, mut failed) = (Vec::new(), Vec::new(), None);
        for process in self.processes.values_mut() {
            process.threads.retain(|_, thread| {
                let is_beside = has_vcpus && thread.kind == ThreadKind::Iothread;
                match thread.read(may_wait, files) {
                    Ok(reading) if is_beside => iothreads.extend(reading),
                    Ok(reading) => threads.extend(reading),
                    Err(error) if error.is_vanished() => {
                        self.ended = true;
                        return false;
                    }
                    Err(error) => _ = failed.get_or_insert(error),
                }
                true
            });
        }
        if let Some(error) = failed {
            files.errors.push(error);
            return Threads::Hidden;
        }
        if threads.is_empty() && !self.processes.is_empty() {
            return Threads::NotRead;
        }
        Threads::Read { threads, are_vcpus: has_vcpus, iothreads }
    }
}

impl Process {
    fn list(&mut self, files: &mut Files, now: Instant) -> Result<(), ReadError> {
        // A new thread has the name of its process until it runs and renames itself.
        let is_named = |since| !is_young(since, now);
        let is_current = |thread: &Thread| match thread.kind {
            ThreadKind::Other => thread.since.is_some_and(is_named),
            ThreadKind::Vcpu | ThreadKind::Iothread => thread.dir.is_some(),
        };
        let mut before = std::mem::take(&mut self.threads);
        for id in self.dir.threads()? {
            let thread = match before.remove(&id) {
                Some(thread) if is_current(&thread) => Ok(thread),
                known => self.dir.thread(id.number).and_then(|dir| {
                    let kind = dir.kind()?;
                    let known = known.unwrap_or_default();
                    let since = known.since.or(Some(now));
                    Ok(Thread { kind, dir: Some(dir), since, ..known })
                }),
            };
            match thread {
                Ok(thread) => _ = self.threads.insert(id, thread),
                Err(error) if error.is_vanished() => {}
                Err(error) => files.errors.push(error),
            }
        }
        Ok(())
    }
}

impl Thread {
    /// `None` for a thread that is not read.
    fn read(
        &mut self,
        may_wait: bool,
        files: &mut Files,
    ) -> Result<Option<ThreadReading>, ReadError> {
        let Some(dir) = &self.dir else { return Ok(None) };
        let times = dir.times()?;
        // The kernel adds a delay when it ends, so nothing is added for a thread that never gets a
        // CPU.
        let stands_still = self.times.value().is_none_or(|before| *before == times);
        self.times.push(Some(Reading { at: (files.clock)().at, value: times }));
        let runnable = stands_still && may_wait && dir.is_runnable()?;
        let starved = std::mem::replace(&mut self.was_runnable, runnable) && runnable;
        Ok(Some(ThreadReading { times: self.times.clone(), starved }))
    }
}
