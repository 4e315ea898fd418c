//! State of a TCP connection in the kernel.

use std::{
    io,
    mem::{MaybeUninit, size_of},
    os::fd::{AsFd, AsRawFd},
    time::Duration,
};

/// Returns the smoothed round trip of a connection, as the kernel measures it: of one that
/// has just been made, the time until the other kernel answered. When the calling program
/// runs changes nothing about it.
pub fn round_trip(stream: &impl AsFd) -> io::Result<Duration> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut length = libc::socklen_t::try_from(size_of::<libc::tcp_info>())
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: the descriptor is open for the call, `info` has room for `length` bytes, and the
    // kernel writes no more than `length` says.
    let got = unsafe {
        libc::getsockopt(
            stream.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if got != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all of it was zeroed or written by the kernel, and it consists of integers and
    // bit fields, of which every value is valid.
    let info = unsafe { info.assume_init() };
    Ok(Duration::from_micros(info.tcpi_rtt.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    #[test]
    fn a_connection_has_a_round_trip_and_a_socket_of_another_kind_has_none() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = listener.local_addr().expect("bound");
        let stream = TcpStream::connect(address).expect("connected");
        let measured = round_trip(&stream).expect("a connection");
        assert!(measured < Duration::from_secs(1), "{measured:?}");
        let other = UdpSocket::bind(("127.0.0.1", 0)).expect("a port");
        round_trip(&other).expect_err("no TCP");
    }
}
