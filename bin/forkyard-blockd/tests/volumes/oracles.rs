//! Agreement with libnbd, QEMU, nbdkit and fio.

use crate::place::{Place, tool};
use std::fs;

fn disk(place: &Place) -> String {
    let path = place.path("raw.img");
    let mut rng = fastrand::Rng::with_seed(3);
    let mut bytes = vec![0; 32 << 20];
    for start in (0..bytes.len()).step_by(3 << 20) {
        let end = (start + (1 << 20) + 777).min(bytes.len());
        bytes[start..end].fill_with(|| rng.u8(..));
    }
    fs::write(&path, bytes).expect("written");
    path.to_str().expect("text").to_owned()
}

#[test]
fn nbdcopy_and_qemu_img_copy_disks_in_and_out_unchanged() {
    let place = Place::new();
    let raw = disk(&place);
    place.ok(&["create", "d", "32M"]);
    let export = place.uri(&place.ok(&["open", "d"]));
    tool("nbdcopy", &["--flush", "--connections=4", &raw, &export]);
    // Out of memory, so that workers read it from the disk.
    let segment = place.path("v/d/0000000001.seg");
    let segment = format!("if={}", segment.display());
    tool("dd", &[&segment, "iflag=nocache", "count=0"]);
    tool("qemu-img", &["compare", "-fraw", "-Fraw", &raw, &export]);
    place.ok(&["snapshot", "d", "s"]);
    let back = place.path("back.img");
    let back = back.to_str().expect("text");
    let snapshot = place.uri("d@s");
    let zero = ["-fraw", "-c", "write -z 0 32M", "-c", "flush", &export];
    tool("qemu-io", &zero);
    tool("nbdcopy", &["--connections=4", &snapshot, back]);
    tool("cmp", &[&raw, back]);
    let map = tool("nbdinfo", &["--map", &export]);
    assert!(map.contains("33554432    3  hole,zero"), "{map}");
    // By way of qcow2, and by the program's own import and export.
    let qcow = place.path("d.qcow2");
    let qcow = qcow.to_str().expect("text");
    tool(
        "qemu-img",
        &["convert", "-fraw", "-Oqcow2", &snapshot, qcow],
    );
    tool("qemu-img", &["check", qcow]);
    tool(
        "qemu-img",
        &["convert", "-n", "-fqcow2", "-Oraw", qcow, &export],
    );
    tool("qemu-img", &["compare", "-fraw", "-Fraw", &raw, &export]);
    place.ok(&["import", "e", &raw]);
    let out = place.path("out.img");
    place.ok(&["export", "e", out.to_str().expect("text")]);
    tool("cmp", &[&raw, out.to_str().expect("text")]);
}

#[test]
fn libnbd_finds_the_protocol_kept() {
    let place = Place::new();
    place.ok(&["create", "d", "16M"]);
    let export = place.uri(&place.ok(&["open", "d"]));
    let info = tool("nbdinfo", &["--json", &export]);
    for fact in [
        "\"structured\": true",
        "\"can_multi_conn\": true",
        "\"base:allocation\"",
    ] {
        assert!(info.contains(fact), "{fact} in {info}");
    }
    let script = "
h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
h.connect_uri(uri)
h.pwrite(b'x' * 5000, 1000, nbd.CMD_FLAG_FUA)
assert h.pread(5002, 999) == b'\\0' + b'x' * 5000 + b'\\0'
h.zero(4096, 2000, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_FUA)
assert h.pread(6000, 0) == bytes(1000) + b'x' * 1000 + bytes(4000)
h.trim(4096, 0)
h.flush()
h.cache(65536, 0)
chunks = []
def chunk(data, offset, status, error):
    chunks.append((len(data), offset, status))
h.pread_structured(1 << 20, 0, chunk, nbd.CMD_FLAG_DF)
assert len(chunks) == 1, chunks
extents = []
def extent(context, offset, entries, error):
    extents.extend(entries)
h.pwrite(b'y' * 4096, 8192)
h.block_status(16 << 20, 0, extent)
assert extents == [4096, 3, 8192, 0, (16 << 20) - 12288, 3], extents
del extents[:]
h.block_status(16 << 20, 0, extent, nbd.CMD_FLAG_REQ_ONE)
assert extents == [4096, 3], extents
h.set_strict_mode(0)
for bad in (lambda: h.pread(10, (16 << 20) - 5), lambda: h.pwrite(b'z' * 10, (16 << 20) - 5),
            lambda: h.trim(10, 1 << 60), lambda: h.block_status(0, 0, extent)):
    try:
        bad()
        assert False, 'not refused'
    except nbd.Error as e:
        assert e.errno in ('EINVAL', 'ENOSPC'), e
cookies = [h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray([i]) * 4096), i * 4096) for i in range(64)]
while h.aio_in_flight() > 0:
    h.poll(-1)
for cookie in cookies:
    assert h.aio_command_completed(cookie)
assert h.pread(4096, 63 * 4096) == bytes([63]) * 4096
";
    let script = format!("import nbd\nh, uri = nbd.NBD(), {export:?}\n{script}");
    // Debian's, whatever else is in PATH: it has the module.
    tool("/usr/bin/python3", &["-c", &script]);
}

#[test]
fn fio_reads_what_it_wrote() {
    let place = Place::new();
    place.ok(&["create", "d", "32M"]);
    let export = place.ok(&["open", "d"]);
    let uri = format!("--uri={}", place.uri(&export));
    let common = [
        "--name=v",
        "--ioengine=nbd",
        &uri,
        "--size=32M",
        "--verify=crc32c",
        "--verify_fatal=1",
        // It would leave a file in the folder that it is started in.
        "--verify_state_save=0",
        "--iodepth=16",
    ];
    for how in ["--bsrange=512-64k", "--bs=4k"] {
        let mut arguments = common.to_vec();
        arguments.extend(["--rw=randwrite", how, "--fsync=50"]);
        tool("fio", &arguments);
    }
    place.ok(&["compact", "d"]);
    let mut arguments = common.to_vec();
    arguments.extend(["--rw=randread", "--bs=4k", "--verify_only"]);
    tool("fio", &arguments);
}

#[test]
fn nbdkit_stands_between_and_nothing_changes() {
    let place = Place::new();
    let raw = disk(&place);
    place.ok(&["create", "d", "32M"]);
    let export = place.ok(&["open", "d"]);
    let socket = format!("socket={}", place.path("n.sock").display());
    let name = format!("export={export}");
    let run =
        format!("nbdcopy --flush {raw} \"$uri\" && qemu-img compare -fraw -Fraw {raw} \"$uri\"");
    let plugin = ["-U", "-", "nbd", &socket, &name, "--run", &run];
    let said = tool("nbdkit", &plugin);
    assert!(said.contains("identical"), "{said}");
}
