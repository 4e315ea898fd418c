//! Answers questions of a family's guests about names that they may reach, and opens the addresses that the answers
//! have before it passes them on.
//!
//! ```text
//! guest --port 53, led here--> judged --to the host's resolvers--> answer --addresses in the sets--> guest
//! ```
//!
//! Listens on the family's gateway address, at a port of its own: a resolver of the host's may have 53. A daemon that
//! dies takes its forwarders along: guests ask again, and the next daemon's answer. What fails is answered with a
//! failure, and opens nothing.

use crate::{
    NetworkError,
    answers::{self, Opened, Question, Verdict},
    nft::Nft,
};
use forkyard_types::NamedHost;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    io,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::Semaphore,
    task::JoinSet,
    time::timeout,
};

/// Questions at once; more go unanswered, and are asked again.
const QUESTIONS: usize = 64;
/// Connections at once.
const CONNECTIONS: usize = 16;
/// Time that a resolver has.
const TO_ANSWER: Duration = Duration::from_secs(3);
/// Time that a connection may be silent.
const SILENT: Duration = Duration::from_secs(10);
/// Most bytes of a datagram.
const DATAGRAM: usize = 4096;
/// Addresses that are open at once, of one family.
pub(crate) const OPEN: usize = 4096;
const DNS: u16 = 53;

/// Addresses that are open for a family, and until when.
#[derive(Clone, Debug, Default)]
pub(crate) struct Learned(Arc<Mutex<Addresses>>);

type Addresses = BTreeMap<(Ipv4Addr, NamedHost), Instant>;

impl Learned {
    /// Those of these that are to be opened now, for they are not or not for long.
    fn news(&self, opened: &[Opened], now: Instant) -> Vec<Opened> {
        let mut open = self.open();
        open.retain(|_, until| now < *until);
        let news = opened.iter().filter(|it| {
            let half = Duration::from_secs(u64::from(it.time) / 2);
            open.get(&(it.address, it.host.clone()))
                .is_none_or(|until| *until < now + half)
        });
        let room = OPEN.saturating_sub(open.len());
        news.take(room).cloned().collect()
    }

    fn note(&self, opened: &[Opened], now: Instant) {
        let mut open = self.open();
        for it in opened {
            let until = now + Duration::from_secs(it.time.into());
            open.insert((it.address, it.host.clone()), until);
        }
    }

    /// All that are open, for as long as they are.
    pub fn left(&self, now: Instant) -> Vec<Opened> {
        let open = self.open();
        let left = open.iter().filter_map(|((address, host), until)| {
            let time = until.checked_duration_since(now)?.as_secs();
            let time = u32::try_from(time).ok().filter(|time| *time > 0)?;
            Some(Opened {
                address: *address,
                host: host.clone(),
                time,
            })
        });
        left.collect()
    }

    /// Those of hosts that may still be reached.
    pub fn kept(&self, allowed: &[NamedHost]) -> Self {
        let mut kept = self.open().clone();
        kept.retain(|(_, host), _| allowed.contains(host));
        Self(Arc::new(Mutex::new(kept)))
    }

    fn open(&self) -> MutexGuard<'_, Addresses> {
        // Whole at every moment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Commands that open addresses of a family, also those that are open, for longer.
pub(crate) type Open = fn(&str, &[Opened]) -> Vec<Value>;

/// Parts that answering questions takes.
#[derive(Debug)]
struct Way {
    family: String,
    allowed: Vec<NamedHost>,
    resolvers: Vec<Ipv4Addr>,
    learned: Learned,
    nft: Nft,
    open: Open,
}

/// Answers the guests of one family, until dropped.
#[derive(Debug)]
pub(crate) struct Forwarder {
    port: u16,
    _tasks: JoinSet<()>,
}

impl Forwarder {
    /// Listens on the family's gateway address. Cancel-safe.
    pub async fn start(
        gateway: Ipv4Addr,
        family: String,
        allowed: Vec<NamedHost>,
        resolvers: Vec<Ipv4Addr>,
        learned: Learned,
        (nft, open): (Nft, Open),
    ) -> Result<Self, NetworkError> {
        let failed = |source| NetworkError::Forwarder { gateway, source };
        let (datagrams, listener) = bind(gateway).await.map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let way = Arc::new(Way {
            family,
            allowed,
            resolvers,
            learned,
            nft,
            open,
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(serve_datagrams(Arc::new(datagrams), way.clone()));
        tasks.spawn(serve_connections(listener, way));
        Ok(Self {
            port,
            _tasks: tasks,
        })
    }

    /// Port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }
}

/// One port for both transports.
async fn bind(gateway: Ipv4Addr) -> io::Result<(UdpSocket, TcpListener)> {
    let mut tries = 0;
    loop {
        let listener = TcpListener::bind((gateway, 0)).await?;
        let port = listener.local_addr()?.port();
        match UdpSocket::bind((gateway, port)).await {
            Ok(datagrams) => return Ok((datagrams, listener)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries < 16 => tries += 1,
            Err(error) => return Err(error),
        }
    }
}

async fn serve_datagrams(socket: Arc<UdpSocket>, way: Arc<Way>) {
    let places = Arc::new(Semaphore::new(QUESTIONS));
    let mut bytes = [0; DATAGRAM];
    loop {
        let (length, from) = match socket.recv_from(&mut bytes).await {
            Ok(heard) => heard,
            // As ICMP has it that a guest has gone.
            Err(error) => {
                tracing::debug!(%error, "a question was not heard");
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            continue;
        };
        let (question, socket, way) = (bytes[..length].to_vec(), socket.clone(), way.clone());
        tokio::spawn(async move {
            let _place = place;
            if let Some(answer) = way.answer(&question, Transport::Datagram).await {
                let _ = socket.send_to(&answer, from).await;
            }
        });
    }
}

async fn serve_connections(listener: TcpListener, way: Arc<Way>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // It is never closed.
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        let Ok((mut stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let way = way.clone();
        tokio::spawn(async move {
            let _place = place;
            while let Ok(Ok(question)) = timeout(SILENT, receive(&mut stream)).await {
                let Some(answer) = way.answer(&question, Transport::Connection).await else {
                    return;
                };
                if !matches!(
                    timeout(SILENT, send(&mut stream, &answer)).await,
                    Ok(Ok(()))
                ) {
                    return;
                }
            }
        });
    }
}

#[derive(Clone, Copy, Debug)]
enum Transport {
    Datagram,
    Connection,
}

impl Way {
    /// Answers a question; none if it is none.
    async fn answer(&self, bytes: &[u8], transport: Transport) -> Option<Vec<u8>> {
        let question = match answers::judge(bytes, &self.allowed) {
            Verdict::Ask(question) => question,
            Verdict::Answer(bytes) => return Some(bytes),
            Verdict::Ignore => return None,
        };
        for resolver in &self.resolvers {
            let at = SocketAddr::from((*resolver, DNS));
            let asked = ask(at, bytes, &question, &self.allowed, transport);
            match timeout(TO_ANSWER, asked).await {
                Ok(Ok((answer, opened))) => match self.let_out(&opened).await {
                    Ok(()) => return Some(answer),
                    Err(error) => {
                        tracing::warn!(
                            family = self.family,
                            error = &error as &dyn std::error::Error,
                            "addresses of a name are not opened"
                        );
                        break;
                    }
                },
                Ok(Err(error)) => tracing::debug!(%resolver, %error, "a resolver does not answer"),
                Err(_) => tracing::debug!(%resolver, "a resolver does not answer in time"),
            }
        }
        answers::failed(&question)
    }

    /// Opens addresses, before the guest hears of them.
    async fn let_out(&self, opened: &[Opened]) -> Result<(), NetworkError> {
        let now = Instant::now();
        let news = self.learned.news(opened, now);
        if news.is_empty() {
            return Ok(());
        }
        self.nft.run((self.open)(&self.family, &news)).await?;
        self.learned.note(&news, now);
        Ok(())
    }
}

/// Asks a resolver, under a number and from a port that others cannot guess; passes by what is no answer to it.
async fn ask(
    at: SocketAddr,
    bytes: &[u8],
    question: &Question,
    allowed: &[NamedHost],
    transport: Transport,
) -> io::Result<(Vec<u8>, Vec<Opened>)> {
    let mut number = [0; 2];
    getrandom::fill(&mut number).map_err(io::Error::other)?;
    let mut asked = bytes.to_vec();
    asked[..2].copy_from_slice(&number);
    let id = u16::from_be_bytes(number);
    let read = |mut answer: Vec<u8>| {
        let opened = answers::opened(&answer, question, id, allowed)?;
        answer[..2].copy_from_slice(&question.id.to_be_bytes());
        Some((answer, opened))
    };
    match transport {
        Transport::Datagram => {
            let socket = UdpSocket::bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0)).await?;
            socket.connect(at).await?;
            socket.send(&asked).await?;
            let mut heard = vec![0; DATAGRAM];
            loop {
                let length = socket.recv(&mut heard).await?;
                if let Some(answer) = read(heard[..length].to_vec()) {
                    return Ok(answer);
                }
            }
        }
        Transport::Connection => {
            let mut stream = TcpStream::connect(at).await?;
            send(&mut stream, &asked).await?;
            let answer = receive(&mut stream).await?;
            read(answer).ok_or_else(|| io::Error::other("it is no answer to the question"))
        }
    }
}

async fn receive(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = stream.read_u16().await?;
    let mut bytes = vec![0; length.into()];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

async fn send(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
    let mut framed = length.to_be_bytes().to_vec();
    framed.extend_from_slice(bytes);
    stream.write_all(&framed).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(last: u8, time: u32) -> Opened {
        Opened {
            address: [198, 51, 100, last].into(),
            host: "example.test".parse().expect("a name"),
            time,
        }
    }

    #[test]
    fn an_address_that_is_open_for_long_is_not_opened_again() {
        let learned = Learned::default();
        let start = Instant::now();
        let all = [opened(1, 100), opened(2, 100)];
        assert_eq!(learned.news(&all, start), all);
        learned.note(&all[..1], start);
        assert_eq!(learned.news(&all, start), all[1..]);
        let later = start + Duration::from_secs(51);
        assert_eq!(
            learned.news(&all[..1], later),
            all[..1],
            "half of it is over"
        );
        assert_eq!(learned.left(later), [opened(1, 49)]);
        assert_eq!(learned.left(start + Duration::from_secs(100)), []);
        let hosts = [opened(1, 100).host, "other.test".parse().expect("a name")];
        assert_eq!(learned.kept(&hosts).left(start).len(), 1);
        assert_eq!(learned.kept(&hosts[1..]).left(start), []);
    }

    #[test]
    fn no_more_are_open_than_there_is_room_for() {
        let learned = Learned::default();
        let start = Instant::now();
        let of = |n: usize| Opened {
            address: Ipv4Addr::from(u32::try_from(n).expect("few") + 0x0100_0000),
            host: "example.test".parse().expect("a name"),
            time: 60,
        };
        let many: Vec<_> = (0..OPEN).map(of).collect();
        learned.note(&many, start);
        assert_eq!(learned.news(&[of(OPEN)], start), []);
        let later = start + Duration::from_secs(61);
        assert_eq!(learned.news(&[of(OPEN)], later).len(), 1);
    }
}
