//! A connection to a TCP port of this guest, for the host: a command of the agent's own, so
//! that it is held still in a fork as every other, and needs no program of the image's.
//!
//! ```text
//! standard input --parts--> socket         standard output <--parts-- socket
//! end of the stream --> no more is sent    no more comes --> end of the stream
//! input ends without that --> reset        reset --> exit code
//! ```
//!
//! The loopback is tried first, then this guest's own addresses: a server is reached whichever of
//! them it listens on. In a clone the copy of this program finds its input ended, and resets its
//! copy of the connection.

use forkyard_agent_link::{CHUNK, CONNECTED, END, StreamPiece, StreamReceiver, part};
use nix::{
    ifaddrs::getifaddrs,
    sys::{
        signal::{SigSet, Signal},
        socket::{setsockopt, sockopt},
    },
};
use std::{
    fs::File,
    io::{self, ErrorKind, Read, Write, stdin, stdout},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream},
    os::fd::AsFd,
    process::{ExitCode, exit},
    thread,
    time::Duration,
};

/// Exit code for a port on which nothing listens.
const NOTHING_LISTENS: u8 = 3;
/// Exit code for what is no port.
const REFUSED: u8 = 4;
/// Exit code for a connection that was reset.
const RESET: u8 = 5;
/// Longest wait for a server that takes no connections.
const DIAL: Duration = Duration::from_secs(10);
/// Bytes of a part, so that it is one message with its length.
const PIECE: usize = CHUNK - END.len();

/// Connects to the port and passes bytes on until both directions have ended.
pub fn main(port: &str) -> ExitCode {
    // The end of input says that the host hung up, and leaves time to reset the connection.
    let mut hangup = SigSet::empty();
    hangup.add(Signal::SIGHUP);
    let _ = hangup.thread_block();
    let Some(port) = port.parse().ok().filter(|port| *port != 0) else {
        eprintln!("{port:?} is no port");
        return ExitCode::from(REFUSED);
    };
    let socket = match dial(port) {
        Ok(socket) => socket,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(NOTHING_LISTENS);
        }
    };
    match carry(&socket) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(RESET)
        }
    }
}

fn dial(port: u16) -> io::Result<TcpStream> {
    let mut failed = io::Error::from(ErrorKind::ConnectionRefused);
    for address in addresses() {
        match TcpStream::connect_timeout(&SocketAddr::new(address, port), DIAL) {
            // Where nothing listens, a socket may by chance be given this very port, and meets itself.
            Ok(socket) if socket.local_addr().ok() == socket.peer_addr().ok() => {}
            Ok(socket) => return Ok(socket),
            // A server that takes no connections says more than an address without one.
            Err(error) if error.kind() == ErrorKind::TimedOut => failed = error,
            Err(_) => {}
        }
    }
    Err(failed)
}

fn addresses() -> Vec<IpAddr> {
    let mut all: Vec<IpAddr> = vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    for interface in getifaddrs().into_iter().flatten() {
        let address = interface.address.as_ref();
        if let Some(address) = address.and_then(|address| address.as_sockaddr_in()) {
            all.push(address.ip().into());
        }
    }
    all.dedup();
    all
}

fn carry(socket: &TcpStream) -> io::Result<()> {
    // Bytes wait for no others: they have come far already.
    let _ = socket.set_nodelay(true);
    // Not through the standard library's buffers, which break output at ends of lines.
    let input = File::from(stdin().as_fd().try_clone_to_owned()?);
    let mut output = File::from(stdout().as_fd().try_clone_to_owned()?);
    output.write_all(&[CONNECTED])?;
    let from = socket.try_clone()?;
    let outward = thread::spawn(move || {
        if let Err(error) = send_out(&from, output) {
            // The other direction may wait for the host for ever.
            eprintln!("{error}");
            reset(&from);
            exit(RESET.into());
        }
    });
    let taken = take_in(input, socket);
    // A server that takes no more may still have something to say.
    let _ = outward.join();
    taken
}

/// Passes on what the host sends, until its end.
fn take_in(mut input: File, mut socket: &TcpStream) -> io::Result<()> {
    let mut parts = StreamReceiver::default();
    let mut buffer = vec![0; CHUNK];
    loop {
        let read = match input.read(&mut buffer) {
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => 0,
        };
        if read == 0 {
            // Nothing listens here any more, and the server is to know.
            reset(socket);
            exit(RESET.into());
        }
        for piece in parts.feed(&buffer[..read]) {
            match piece {
                StreamPiece::Data(data) => socket.write_all(&data)?,
                StreamPiece::End => {
                    // One that is over already needs no end.
                    let _ = socket.shutdown(Shutdown::Write);
                    // Watched from here on for the host's hanging up alone.
                    watch(input, socket.try_clone()?);
                    return Ok(());
                }
            }
        }
    }
}

/// Resets the connection once the host hangs up.
fn watch(mut input: File, socket: TcpStream) {
    thread::spawn(move || {
        while matches!(input.read(&mut [0; 64]), Ok(1..)) {}
        reset(&socket);
        exit(RESET.into());
    });
}

/// Has the kernel reset the connection as this program ends, rather than end it in order.
fn reset(socket: &TcpStream) {
    let at_once = nix::libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    let _ = setsockopt(socket, sockopt::Linger, &at_once);
}

/// Passes on what the server sends, until its end.
fn send_out(mut socket: &TcpStream, mut output: File) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    loop {
        match socket.read(&mut buffer) {
            Ok(0) => return output.write_all(&END),
            Ok(read) => output.write_all(&part(&buffer[..read]))?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_server_is_reached_on_either_loopback() {
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(at) else {
                continue;
            };
            let port = listener.local_addr().expect("an address").port();
            dial(port).expect(at);
        }
    }

    #[test]
    fn a_port_without_a_listener_is_told_of_and_never_meets_itself() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        // More often than there are ports to be given by chance would take too long: a few will do.
        for _ in 0..50 {
            let error = dial(port).expect_err("nothing listens");
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        }
    }
}
