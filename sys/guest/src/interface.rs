//! A network interface: its addresses, and whether it is up.

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use std::{
    io,
    net::Ipv4Addr,
    os::fd::{AsRawFd, OwnedFd},
};

const ETHERNET: libc::sa_family_t = 1; // ARPHRD_ETHER
const UP: libc::c_short = 1; // IFF_UP, as ifr_flags has it
const _: () = assert!(libc::IFF_UP == 1);
const _: () = assert!(
    size_of::<libc::ifreq>() == 40,
    "what the requests below read"
);

mod request {
    nix::ioctl_write_ptr_bad!(
        /// Sets the hardware address.
        set_mac,
        libc::SIOCSIFHWADDR,
        libc::ifreq
    );
    nix::ioctl_write_ptr_bad!(
        /// Sets the address; the one before it goes, with its routes.
        set_address,
        libc::SIOCSIFADDR,
        libc::ifreq
    );
    nix::ioctl_write_ptr_bad!(
        /// Sets the netmask, and with it the route to the network.
        set_netmask,
        libc::SIOCSIFNETMASK,
        libc::ifreq
    );
    nix::ioctl_write_ptr_bad!(
        /// Adds a route.
        add_route,
        libc::SIOCADDRT,
        super::RouteEntry
    );
    nix::ioctl_read_bad!(
        /// Reads the flags.
        get_flags,
        libc::SIOCGIFFLAGS,
        libc::ifreq
    );
    nix::ioctl_write_ptr_bad!(
        /// Sets the flags.
        set_flags,
        libc::SIOCSIFFLAGS,
        libc::ifreq
    );
}

/// `struct rtentry` of linux/route.h, which libc does not have for every C
/// library.
#[repr(C)]
#[derive(Debug)]
struct RouteEntry {
    pad1: libc::c_ulong,
    destination: libc::sockaddr,
    gateway: libc::sockaddr,
    netmask: libc::sockaddr,
    flags: libc::c_ushort,
    pad2: libc::c_short,
    pad3: libc::c_ulong,
    pad4: *mut libc::c_void,
    metric: libc::c_short,
    device: *mut libc::c_char,
    mtu: libc::c_ulong,
    window: libc::c_ulong,
    irtt: libc::c_ushort,
}
const _: () = assert!(size_of::<RouteEntry>() == 120, "what SIOCADDRT reads");
const ROUTE_UP: libc::c_ushort = 1; // RTF_UP
const ROUTE_GATEWAY: libc::c_ushort = 2; // RTF_GATEWAY

/// An interface by its name.
#[derive(Debug)]
pub struct Interface {
    socket: OwnedFd,
    name: [libc::c_char; libc::IFNAMSIZ],
}

impl Interface {
    /// Names an interface; whether there is one of that name shows when it is
    /// used.
    pub fn new(name: &str) -> io::Result<Self> {
        let mut chars = [0; libc::IFNAMSIZ];
        if name.len() >= chars.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (to, from) in chars.iter_mut().zip(name.bytes()) {
            *to = libc::c_char::from_ne_bytes([from]);
        }
        let socket = socket(
            AddressFamily::Inet,
            SockType::Datagram,
            SockFlag::SOCK_CLOEXEC,
            None,
        )?;
        Ok(Self {
            socket,
            name: chars,
        })
    }

    /// Sets its Ethernet address; it may be up.
    pub fn set_mac(&self, mac: [u8; 6]) -> io::Result<()> {
        let mut address = libc::sockaddr {
            sa_family: ETHERNET,
            sa_data: [0; 14],
        };
        for (to, from) in address.sa_data.iter_mut().zip(mac) {
            *to = libc::c_char::from_ne_bytes([from]);
        }
        let request = self.request(libc::__c_anonymous_ifr_ifru {
            ifru_hwaddr: address,
        });
        // SAFETY: the socket is open, and `request` an initialised ifreq.
        unsafe { request::set_mac(self.socket.as_raw_fd(), &raw const request) }?;
        Ok(())
    }

    /// Sets its IPv4 address in place of the one it has.
    pub fn set_address(&self, ip: Ipv4Addr, prefix: u8) -> io::Result<()> {
        let mask = Ipv4Addr::from(
            u32::MAX
                .checked_shl(32 - u32::from(prefix.min(32)))
                .unwrap_or(0),
        );
        let request = self.request(libc::__c_anonymous_ifr_ifru {
            ifru_addr: internet(ip),
        });
        // SAFETY: the socket is open, and `request` an initialised ifreq.
        unsafe { request::set_address(self.socket.as_raw_fd(), &raw const request) }?;
        let request = self.request(libc::__c_anonymous_ifr_ifru {
            ifru_addr: internet(mask),
        });
        // SAFETY: as above.
        unsafe { request::set_netmask(self.socket.as_raw_fd(), &raw const request) }?;
        Ok(())
    }

    /// Sends whatever is for no network of this machine's own to `gateway`. The
    /// route goes with the address; the interface must be up.
    pub fn set_gateway(&self, gateway: Ipv4Addr) -> io::Result<()> {
        let mut device = self.name;
        let route = RouteEntry {
            pad1: 0,
            destination: internet(Ipv4Addr::UNSPECIFIED),
            gateway: internet(gateway),
            netmask: internet(Ipv4Addr::UNSPECIFIED),
            flags: ROUTE_UP | ROUTE_GATEWAY,
            pad2: 0,
            pad3: 0,
            pad4: std::ptr::null_mut(),
            metric: 0,
            device: device.as_mut_ptr(),
            mtu: 0,
            window: 0,
            irtt: 0,
        };
        // SAFETY: the socket is open, `route` is laid out as an rtentry, and
        // its device is a name that ends in a zero and outlives the call.
        unsafe { request::add_route(self.socket.as_raw_fd(), &raw const route) }?;
        Ok(())
    }

    /// Brings it up, if it is not.
    pub fn bring_up(&self) -> io::Result<()> {
        let mut request = self.request(libc::__c_anonymous_ifr_ifru { ifru_flags: 0 });
        // SAFETY: the socket is open, and `request` an initialised ifreq, which
        // the kernel may write to.
        unsafe { request::get_flags(self.socket.as_raw_fd(), &raw mut request) }?;
        // SAFETY: the flags are what the kernel has just written.
        let flags = unsafe { request.ifr_ifru.ifru_flags };
        if flags & UP != 0 {
            return Ok(());
        }
        // The others stay: without IFF_MULTICAST, say, it would hear no groups.
        let flags = flags | UP;
        let request = self.request(libc::__c_anonymous_ifr_ifru { ifru_flags: flags });
        // SAFETY: the socket is open, and `request` an initialised ifreq.
        unsafe { request::set_flags(self.socket.as_raw_fd(), &raw const request) }?;
        Ok(())
    }

    fn request(&self, what: libc::__c_anonymous_ifr_ifru) -> libc::ifreq {
        libc::ifreq {
            ifr_name: self.name,
            ifr_ifru: what,
        }
    }
}

fn internet(ip: Ipv4Addr) -> libc::sockaddr {
    let mut address = libc::sockaddr {
        sa_family: 2,
        sa_data: [0; 14],
    };
    // Two bytes of port, then the address.
    for (to, from) in address.sa_data[2..].iter_mut().zip(ip.octets()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    address
}
