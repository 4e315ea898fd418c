//! Messages of the agent to the host, in order, and held back while the host
//! wants silence.

use super::{lane::Lane, port};
use forkyard_agent_link::{Session, Stream, ToHost, around, encode_with_data};
use std::{
    collections::VecDeque,
    io::{self, Write},
    os::fd::OwnedFd,
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
    port: Mutex<Way>,
}

#[derive(Debug)]
struct Way {
    port: port::Writer,
    /// Opened once there is much data.
    lane: Option<Lane>,
}

impl Outbox {
    /// Over this port.
    pub fn new(port: port::Writer) -> Self {
        Self {
            queue: Mutex::default(),
            changed: Condvar::new(),
            port: Mutex::new(Way { port, lane: None }),
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
        match self.free_way() {
            Some(mut way) => write(&mut way, &message),
            None => self.push(message),
        }
    }

    /// Sends so many bytes of a command's output that lie in a pipe, if nothing is queued: no copy is made where
    /// none need be. Otherwise takes nothing, and returns false.
    pub fn pass_on(&self, session: Session, stream: Stream, from: &OwnedFd, bytes: usize) -> bool {
        let Some(mut way) = self.free_way() else {
            return false;
        };
        let message = ToHost::ExecOutput {
            session,
            stream,
            data: Vec::new(),
        };
        let (Ok(frame), Ok(mut lane)) = (
            around(&message, bytes),
            way.lane.take().map_or_else(Lane::open, Ok),
        ) else {
            return false;
        };
        match lane.send(&frame, from, bytes, &mut way.port) {
            Ok(()) => way.lane = Some(lane),
            Err(error) => eprintln!("forkyard-guest: to the host: {error}"),
        }
        true
    }

    /// The port, if nothing is queued and it is free. As in `send_next`, it is taken before the queue is let go, so
    /// that messages keep their order.
    fn free_way(&self) -> Option<MutexGuard<'_, Way>> {
        let queue = lock(&self.queue);
        if queue.held || !queue.messages.is_empty() {
            return None;
        }
        self.port.try_lock().ok()
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

fn write(way: &mut Way, message: &ToHost) {
    let frame = encode_with_data(message, message.data()).map_err(io::Error::other);
    // Without a host there is no peer to tell; the next one says Hello.
    if let Err(error) = frame.and_then(|frame| way.port.write_all(&frame)) {
        eprintln!("forkyard-guest: to the host: {error}");
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
