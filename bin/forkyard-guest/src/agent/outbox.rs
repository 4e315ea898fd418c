//! Messages of the agent to the host, in order, and held back while the host
//! wants silence.

use forkyard_agent_link::{ToHost, send};
use std::{
    collections::VecDeque,
    fs::File,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

/// Messages waiting; a sender that has more to say waits, too.
const MOST: usize = 64;

#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<ToHost>,
    held: bool,
}

/// The way out.
#[derive(Debug)]
pub struct Outbox {
    queue: Mutex<Queue>,
    changed: Condvar,
    port: Mutex<File>,
}

impl Outbox {
    /// Over this port.
    pub fn new(port: File) -> Self {
        Self {
            queue: Mutex::default(),
            changed: Condvar::new(),
            port: Mutex::new(port),
        }
    }

    /// Starts sending what is pushed.
    pub fn start(self: &Arc<Self>) {
        let this = self.clone();
        thread::spawn(move || {
            loop {
                this.send_next();
            }
        });
    }

    /// Queues a message. Waits while too many are queued.
    pub fn push(&self, message: ToHost) {
        let mut queue = self.wait_while(|queue| queue.messages.len() >= MOST);
        queue.messages.push_back(message);
        self.changed.notify_all();
    }

    /// Sends a message itself if nothing is queued, and queues it otherwise. For threads that have
    /// nothing else to do: one that writes much need not wake another for each message.
    pub fn pass(&self, message: ToHost) {
        let queue = lock(&self.queue);
        if queue.held || !queue.messages.is_empty() {
            drop(queue);
            return self.push(message);
        }
        // As in `send_next`: taken before the queue is let go, so that messages keep their order.
        let Ok(mut port) = self.port.try_lock() else {
            drop(queue);
            return self.push(message);
        };
        drop(queue);
        write(&mut port, &message);
    }

    /// Sends a message past the queue, held or not.
    pub fn say_now(&self, message: &ToHost) {
        write(&mut lock(&self.port), message);
    }

    /// From here on nothing is sent but by `say_now`; waits until what is
    /// being sent is out.
    pub fn hold(&self) {
        lock(&self.queue).held = true;
        drop(lock(&self.port));
    }

    /// Lets the queue flow again.
    pub fn release(&self) {
        lock(&self.queue).held = false;
        self.changed.notify_all();
    }

    /// Forgets what is queued.
    pub fn clear(&self) {
        self.keep(|_| false);
    }

    /// Forgets what is queued, but for some.
    pub fn keep(&self, wanted: impl FnMut(&ToHost) -> bool) {
        lock(&self.queue).messages.retain(wanted);
        self.changed.notify_all();
    }

    fn send_next(&self) {
        let mut queue = self.wait_while(|queue| queue.held || queue.messages.is_empty());
        let Some(message) = queue.messages.pop_front() else {
            return;
        };
        // Taken before the queue is let go: no thread can hold the queue and
        // find the port free while this message is on its way between them.
        let mut port = lock(&self.port);
        drop(queue);
        self.changed.notify_all();
        write(&mut port, &message);
    }

    fn wait_while(&self, mut condition: impl FnMut(&Queue) -> bool) -> MutexGuard<'_, Queue> {
        let queue = lock(&self.queue);
        self.changed
            .wait_while(queue, |queue| condition(queue))
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn write(port: &mut File, message: &ToHost) {
    // Without a host there is no peer to tell; the next one says Hello.
    if let Err(error) = send(port, message) {
        eprintln!("forkyard-guest: to the host: {error}");
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
