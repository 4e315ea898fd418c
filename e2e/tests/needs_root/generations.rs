//! Clones of clones of clones.

use forkyard_e2e::{Host, eventually};
use forkyard_types::VmInspect;

const GENERATIONS: usize = 10;
/// However quickly one generation follows the other; and once there is time.
const DEEPEST: usize = 9;
const DEEP: usize = 6;
/// Layers of memory. Members that are still there keep two each, one of what their
/// fork copied ahead; each of the others adds none.
const LAYERS: u32 = 15;

#[test]
fn the_tenth_generation_is_no_deeper_than_the_fifth_and_has_all_that_was_written() {
    let host = Host::with_p([]);
    let inspect = |vm: &str| host.json::<VmInspect>(["inspect", vm]);
    let (mut last, mut files, mut kept) = ("p".to_owned(), String::new(), Vec::new());
    for generation in 1..=GENERATIONS {
        let (memory, disk) = (format!("/m/{generation}"), format!("/d/{generation}"));
        // Whatever was written before is written over in part.
        let script = format!(
            "dd if=/dev/urandom of={memory} bs=60k count=20 2>/dev/null; \
             dd if=/dev/urandom of={disk} bs=50k count=2 2>/dev/null; \
             dd if={disk} of=/d/all conv=notrunc bs=50k seek={generation} 2>/dev/null; sync"
        );
        host.sh(&last, &script);
        files = format!("{files} {memory} {disk}");
        let told = host.sums(&last, &format!("{files} /d/all"));
        let clone = host.fork(&last, 1).remove(0);
        // Every other parent goes; the rest still need their slices.
        match generation % 2 {
            0 => drop(host.ok(["rm", &last])),
            _ => kept.push((last, files.clone(), told.clone())),
        }
        last = clone.name.to_string();
        let seen = inspect(&last);
        assert!(
            seen.disk.len() <= DEEPEST,
            "generation {generation}: {:?}",
            seen.disk
        );
        if generation == GENERATIONS {
            kept.push((last.clone(), files.clone(), told));
        }
    }
    eventually("a shallow disk", || inspect(&last).disk.len() <= DEEP);
    eventually("few layers", || {
        let image = inspect(&last).memory_image;
        image.is_some_and(|image| image.layers <= LAYERS)
    });
    for (vm, files, told) in &kept {
        host.sh(vm, "echo 3 >/proc/sys/vm/drop_caches");
        assert_eq!(host.sums(vm, &format!("{files} /d/all")), *told, "{vm}");
    }
    // The youngest needs no other.
    let (last, rest) = kept.split_last().expect("the youngest");
    for (vm, ..) in rest {
        host.ok(["rm", vm]);
    }
    let (vm, files, told) = last;
    host.sh(vm, "echo 3 >/proc/sys/vm/drop_caches");
    assert_eq!(host.sums(vm, &format!("{files} /d/all")), *told);
    host.end();
}
