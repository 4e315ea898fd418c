//! QEMU's command line. Parent and clones must have the same devices at the
//! same places, or the state of one does not fit the other: so there is one
//! function for both.

use crate::{
    BootSpec, Kernel, MachineSpec, RootDisk, ShellSpec, VmmError, growth, inherited::Numbers,
};
use forkyard_types::NbdDisk;
use serde_json::{Value, json};
use std::path::Path;

/// Path of the table of firmware, in a machine's jail.
pub(crate) const TABLE: &str = "/growth.aml";
/// Name of the virtio-serial port the agent talks through.
const AGENT_PORT: &str = "org.forkyard.agent";

/// The number of the slice a machine starts with.
pub(crate) const FIRST_SLICE: u64 = 0;

const SLICE: &str = "slice-";
const FILE: &str = "file-";
const VOLUME: &str = "volume";
/// With a geometry, which no guest of today looks at, QEMU does not read the first sector for
/// one: a shell's disk may be on its way yet.
/// The guest is stopped, and sees no error, when a disk says that it has no room, or, as servers of
/// volumes say it, that what is read is at another host that does not answer.
const DRIVE: &str = "cyls=16383,heads=16,secs=63,rerror=enospc,werror=enospc";
/// As many as a machine of one vCPU has, whatever vCPUs come later: one thread serves them all.
const QUEUES: &str = "num-queues=1";
/// Slot on the bus of the first data disk: those before it are taken.
const FIRST_DATA: usize = 6;

/// QEMU's name for a slice.
pub(crate) fn slice_name(number: u64) -> String {
    format!("{SLICE}{number}")
}

/// The file a slice lies in.
pub(crate) fn file_name(number: u64) -> String {
    format!("{FILE}{number}")
}

/// The slice whose file has this name, if it is one's.
pub(crate) fn file_number(name: &str) -> Option<u64> {
    name.strip_prefix(FILE)?.parse().ok()
}

/// The slice that has this name, if it is one's.
pub(crate) fn slice_number(name: &str) -> Option<u64> {
    name.strip_prefix(SLICE)?.parse().ok()
}

/// A slice as QEMU is told to open it.
pub(crate) fn slice(number: u64, file: &Path) -> Result<Value, VmmError> {
    Ok(json!({
        "driver": "qcow2",
        "node-name": slice_name(number),
        "discard": "unmap",
        "file": {
            "driver": "file",
            "node-name": file_name(number),
            "filename": text(file)?,
            "discard": "unmap",
        },
    }))
}

/// A volume as QEMU is told to open it.
fn volume(disk: &NbdDisk, node: &str) -> Value {
    let mut driver = json!(disk.driver());
    driver["node-name"] = node.into();
    driver["discard"] = "unmap".into();
    driver
}

/// Arguments of a machine that boots.
pub(crate) fn boot(spec: &BootSpec, fds: Numbers) -> Result<Vec<String>, VmmError> {
    let memory = json!({
        "qom-type": "memory-backend-ram",
        "id": "ram0",
        "size": spec.machine.memory.0,
    });
    let mut args = machine(&spec.machine, fds, &memory)?;
    // Read by its firmware alone: a machine that is loaded has booted.
    args.extend(["-acpitable".to_owned(), format!("file={TABLE}")]);
    if let Some(kernel) = &spec.kernel {
        args.extend(direct(kernel)?);
    }
    Ok(args)
}

/// Arguments of a machine that waits for a state.
pub(crate) fn shell(spec: &ShellSpec, fds: Numbers) -> Result<Vec<String>, VmmError> {
    let memory = json!({
        "qom-type": "memory-backend-file",
        "id": "ram0",
        "size": spec.machine.memory.0,
        "share": false,
        "mem-path": text(&spec.memory_file)?,
    });
    let mut args = machine(&spec.machine, fds, &memory)?;
    args.extend(words("-S -incoming defer"));
    Ok(args)
}

fn direct(kernel: &Kernel) -> Result<Vec<String>, VmmError> {
    let mut args = vec!["-kernel".to_owned(), text(&kernel.image)?.to_owned()];
    if let Some(initrd) = &kernel.initrd {
        args.extend(["-initrd".to_owned(), text(initrd)?.to_owned()]);
    }
    args.extend(["-append".to_owned(), kernel.cmdline.clone()]);
    Ok(args)
}

fn machine(spec: &MachineSpec, fds: Numbers, memory: &Value) -> Result<Vec<String>, VmmError> {
    let Numbers {
        qmp,
        agent,
        console,
        nic,
        track: _,
    } = fds;
    let withheld = spec.withheld.iter().map(|feature| format!(",-{feature}"));
    let cpu: String = [spec.accel.cpu_model().to_owned()]
        .into_iter()
        .chain(withheld)
        .collect();
    let accel = spec.accel;
    let (id, vcpus, kib) = (spec.id, spec.vcpus, spec.memory.0 / 1024);
    let places = growth::most_vcpus(vcpus);
    let below = growth::below_4g(spec.booted, spec.memory);
    let below = below.map(|low| format!(",max-ram-below-4g={}k", low.0 / 1024));
    let below = below.unwrap_or_default();
    let reporting = if spec.page_reporting { "on" } else { "off" };
    // `suppress-vmdesc` and `send-configuration` make a stream of device state
    // alone loadable. `vapic`, an aid for old Windows on KVM, looks into guest
    // memory while its state is loaded and fails if the firmware was at work.
    // Guests of different families never share a page, whatever the host's KSM would do.
    // A clone that woke would have its guest announce the parent's address.
    // A modern virtio device saves the state of 1024 queues, 44 KB, whatever it
    // has: the balloon, of which a guest need not have a driver at all, is one
    // of the old kind, and every pause and every clone is the shorter for it.
    let mut args = words(&format!(
        "-nodefaults -no-user-config -display none -vga none -no-reboot \
         -name {id},debug-threads=on \
         -sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny \
         -M q35,suppress-vmdesc=on,mem-merge=off,memory-backend=ram0{below} \
         -global migration.send-configuration=off \
         -global migration.announce-rounds=0 \
         -global apic-common.vapic=off \
         -accel {accel} -cpu {cpu} -smp {vcpus},maxcpus={places} -m {kib}k \
         -chardev socket,id=qmp,fd={qmp},server=on,wait=off -mon chardev=qmp,mode=control \
         -chardev socket,id=console,fd={console},server=on,wait=off -serial chardev:console \
         -device virtio-serial-pci,id=serial0,addr=4 \
         -chardev socket,id=agent,fd={agent},server=on,wait=off \
         -device virtserialport,bus=serial0.0,chardev=agent,name={AGENT_PORT} \
         -device virtio-balloon-pci,id=balloon0,addr=5,free-page-reporting={reporting},page-poison=off,disable-modern=on"
    ));
    args.extend(["-object".to_owned(), memory.to_string()]);
    if let Some(disk) = &spec.disk {
        let (node, driver) = match disk {
            RootDisk::Slice(file) => (slice_name(FIRST_SLICE), slice(FIRST_SLICE, file)?),
            RootDisk::Volume(disk) => (VOLUME.to_owned(), volume(disk, VOLUME)),
        };
        args.extend(["-blockdev".to_owned(), driver.to_string()]);
        args.extend(words(&format!(
            "-device virtio-blk-pci,id=disk0,addr=2,drive={node},{QUEUES},{DRIVE}"
        )));
    }
    for (number, drive) in spec.data.iter().enumerate() {
        let (node, addr) = (format!("data-{number}"), FIRST_DATA + number);
        let mut driver = volume(&drive.disk, &node);
        driver["read-only"] = drive.is_read_only.into();
        args.extend(["-blockdev".to_owned(), driver.to_string()]);
        let serial = &drive.serial;
        args.extend(words(&format!(
            "-device virtio-blk-pci,id={node},addr={addr:x},drive={node},serial={serial},{QUEUES},{DRIVE}"
        )));
    }
    if let Some((tap, mac)) = nic {
        // No option ROM: nothing boots from the network, and reading it takes
        // the firmware time. A card that could have its guest announce itself after a load loses the
        // timer for that, and QEMU dies of it as the guest resets the card to restart or power off.
        args.extend(words(&format!(
            "-netdev tap,id=net0,fd={tap} \
             -device virtio-net-pci,id=nic0,addr=3,netdev=net0,mac={mac},romfile=,guest_announce=off"
        )));
    }
    Ok(args)
}

fn words(line: &str) -> Vec<String> {
    line.split_ascii_whitespace().map(str::to_owned).collect()
}

pub(crate) fn text(path: &Path) -> Result<&str, VmmError> {
    path.to_str().ok_or_else(|| VmmError::Path {
        path: path.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Accel, Limits, Owner};
    use forkyard_types::{ByteCount, VmId};
    use std::num::NonZeroU8;
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

    const FDS: Numbers = Numbers {
        qmp: 10,
        agent: 11,
        console: 12,
        nic: None,
        track: 13,
    };

    fn spec(id: VmId) -> MachineSpec {
        MachineSpec {
            id,
            dir: "/vm".into(),
            owner: Owner { uid: 1, gid: 1 },
            vcpus: NonZeroU8::MIN,
            memory: ByteCount(64 << 20),
            booted: ByteCount(64 << 20),
            accel: Accel::Tcg,
            withheld: Vec::new(),
            disk: Some(RootDisk::Slice("/disk, with a comma".into())),
            data: Vec::new(),
            volumes: None,
            nic: None,
            limits: Limits::default(),
            page_reporting: true,
        }
    }

    /// Arguments that say what devices there are.
    fn devices(args: &[String]) -> Vec<&String> {
        let pairs = args.iter().zip(args.iter().skip(1));
        pairs
            .filter(|(flag, _)| *flag == "-device")
            .map(|(_, device)| device)
            .collect()
    }

    #[test]
    fn features_that_are_withheld_are_taken_from_the_model() {
        let machine = MachineSpec {
            accel: Accel::Kvm,
            withheld: vec!["avx512f".into(), "sse4.1".into()],
            ..spec(VmId::random())
        };
        let kernel = None;
        let args = boot(&BootSpec { machine, kernel }, FDS).expect("UTF-8");
        let at = args.iter().position(|arg| arg == "-cpu").expect("a CPU");
        assert_eq!(args[at + 1], "host,-avx512f,-sse4.1");
    }

    #[test]
    fn a_clone_has_the_devices_of_its_parent() {
        let id = VmId::random();
        let parent = BootSpec {
            machine: spec(id),
            kernel: None,
        };
        let clone = ShellSpec {
            machine: spec(id),
            memory_file: "/image".into(),
        };
        let parent = boot(&parent, FDS).expect("UTF-8");
        let clone = shell(&clone, FDS).expect("UTF-8");
        assert_eq!(devices(&parent), devices(&clone));
        assert!(clone.ends_with(&["-S".into(), "-incoming".into(), "defer".into()]));
        assert!(!parent.contains(&"-incoming".into()));
    }

    #[test]
    fn memory_that_came_after_the_boot_lies_above_what_was_there() {
        let mut machine = spec(VmId::random());
        machine.memory = ByteCount(256 << 20);
        let larger = ShellSpec {
            machine,
            memory_file: "/image".into(),
        };
        let args = shell(&larger, FDS).expect("UTF-8");
        let after = |flag: &str| {
            let at = args.iter().position(|arg| arg == flag).expect("there");
            &args[at + 1]
        };
        assert!(after("-M").ends_with(",max-ram-below-4g=65536k"));
        assert_eq!(after("-smp"), "1,maxcpus=8");
        assert!(!args.iter().any(|arg| arg == "-acpitable"));
    }

    #[test]
    fn data_disks_are_told_apart_by_serial_numbers_and_have_places_of_their_own() {
        let mut machine = spec(VmId::random());
        machine.data = (0..8)
            .map(|number| crate::DataDrive {
                serial: format!("d{number}"),
                disk: NbdDisk {
                    socket: "/run/nbd.sock".into(),
                    export: format!("d{number}:1"),
                },
                is_read_only: number == 7,
            })
            .collect();
        let spec = BootSpec {
            machine,
            kernel: None,
        };
        let args = boot(&spec, FDS).expect("UTF-8");
        let drives = devices(&args).into_iter();
        let drives: Vec<_> = drives.filter(|it| it.contains("id=data-")).collect();
        assert_eq!(drives.len(), 8);
        assert!(drives[7].contains("addr=d,drive=data-7,serial=d7,num-queues=1"));
        let nodes = args.iter().filter(|it| it.contains(r#""read-only":true"#));
        assert_eq!(nodes.count(), 1);
    }

    #[test]
    fn a_path_is_said_whole_whatever_is_in_it() {
        let opened = slice(3, Path::new("/disk, with \"things\"=in it")).expect("UTF-8");
        assert_eq!(opened["file"]["filename"], "/disk, with \"things\"=in it");
    }

    #[test]
    fn a_path_that_is_not_text_is_refused() {
        let path = Path::new(OsStr::from_bytes(b"/\xff"));
        assert!(matches!(slice(0, path), Err(VmmError::Path { .. })));
    }

    #[test]
    fn a_slice_is_known_by_its_name() {
        assert_eq!(slice_number(&slice_name(42)), Some(42));
        assert_eq!(slice_number("file-42"), None);
        assert_eq!(slice_number("#block42"), None);
    }
}
