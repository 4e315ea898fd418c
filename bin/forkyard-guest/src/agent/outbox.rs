//! Messages of the agent to the host, in order, and held back while the host
//! wants silence.

use super::{
    lane::{Lane, Stage},
    port,
};
use forkyard_agent_link::{
    MAX_PAYLOAD, OVERHEAD, Session, Stream, ToHost, around, encode_with_data,
};
use std::{
    collections::VecDeque,
    io::{self, Write},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

/// Messages waiting; a sender that has more to say waits, too.
const MOST: usize = 64;
/// Bytes that are worth the lane: fewer go through the port at once.
pub const MUCH: usize = 32 << 10;

#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<ToHost>,
    held: bool,
}

impl Way {
    /// Takes the lane, to be put back after use unless that failed.
    fn lane(&mut self) -> Option<Lane> {
        self.lane.take().or_else(|| Lane::open().ok())
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        if frame.len() < MUCH {
            return self.port.write_all(frame);
        }
        let Some(mut lane) = self.lane() else {
            return self.port.write_all(frame);
        };
        lane.carry(frame, &mut self.port)?;
        self.lane = Some(lane);
        Ok(())
    }
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

    /// Sends so many bytes of a command's output, which a stage has, if nothing is queued. Otherwise takes nothing,
    /// and returns false. After an error they are lost.
    pub fn pass_on(
        &self,
        session: Session,
        stream: Stream,
        from: &Stage,
        bytes: usize,
    ) -> io::Result<bool> {
        let message = ToHost::ExecOutput {
            session,
            stream,
            data: Vec::new(),
        };
        let Some(mut way) = self.free_way() else {
            return Ok(false);
        };
        let (Ok(frame), Some(mut lane)) = (around(&message, bytes), way.lane()) else {
            return Ok(false);
        };
        lane.pass_on(&frame, from, bytes, &mut way.port)?;
        way.lane = Some(lane);
        Ok(true)
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

    /// Ends a frame that an earlier agent may have begun: no frame is longer than these zeros, which are none.
    pub fn end_frame(&self) {
        let zeros = vec![0; MAX_PAYLOAD + OVERHEAD];
        if let Err(error) = lock(&self.port).port.write_all(&zeros) {
            eprintln!("forkyard-guest: to the host: {error}");
        }
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
    if let Err(error) = frame.and_then(|frame| way.send(&frame)) {
        eprintln!("forkyard-guest: to the host: {error}");
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
