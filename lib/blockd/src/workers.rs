//! Threads for what may wait for a disk.

use std::{
    fmt,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

type Job = Box<dyn FnOnce() + Send>;

/// Pool that all connections share.
#[derive(Clone)]
pub(crate) struct Workers(Sender<Job>);

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Workers")
    }
}

impl Workers {
    /// Starts so many threads. They end with the last clone of the pool.
    pub fn start(count: usize) -> std::io::Result<Self> {
        let (jobs, queue) = channel::<Job>();
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..count {
            let queue = Arc::clone(&queue);
            thread::Builder::new()
                .name("worker".into())
                .spawn(move || while take(&queue).map(|job| job()).is_some() {})?;
        }
        Ok(Self(jobs))
    }

    /// Has a job done by some thread.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        // Threads end after the last sender alone, so that there are some.
        let _ = self.0.send(Box::new(job));
    }
}

fn take(queue: &Mutex<Receiver<Job>>) -> Option<Job> {
    let queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
    queue.recv().ok()
}

/// Jobs of a connection that are not done, and their limit.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    count: Mutex<usize>,
    fewer: Condvar,
}

/// One job that is not done, until it is dropped.
#[derive(Debug)]
pub(crate) struct Ticket(Arc<Pending>);

impl Pending {
    fn count(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one, once there are fewer than `most`.
    pub fn enter(self: &Arc<Self>, most: usize) -> Ticket {
        let mut count = self.count();
        while *count >= most {
            count = self
                .fewer
                .wait(count)
                .unwrap_or_else(PoisonError::into_inner);
        }
        *count += 1;
        Ticket(Arc::clone(self))
    }

    /// Waits until there are none.
    pub fn drain(&self) {
        let mut count = self.count();
        while *count > 0 {
            count = self
                .fewer
                .wait(count)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        *self.0.count() -= 1;
        self.0.fewer.notify_all();
    }
}
