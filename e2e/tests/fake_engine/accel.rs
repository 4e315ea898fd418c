//! The accelerator of VMs, as users see it.

use forkyard_e2e::Host;
use forkyard_types::VmInspect;

#[test]
fn the_accelerator_of_a_vm_and_why_it_is_not_kvm_are_shown() {
    let host = Host::fake().telling("FORKYARD_ACCEL", "tcg");
    host.ok(["run", "tiny", "--name", "p"]);
    let listed = host.ok(["ps"]);
    let columns: Vec<_> = listed.lines().map(str::split_whitespace).collect();
    assert!(
        columns[0].clone().any(|column| column == "ACCEL"),
        "{listed}"
    );
    assert!(columns[1].clone().any(|column| column == "tcg"), "{listed}");
    let seen: VmInspect = host.json(["inspect", "p"]);
    let why = seen.emulated_because.expect("a reason");
    let shown = host.ok(["inspect", "p"]);
    for line in ["accel    tcg".to_owned(), format!("no kvm   {why}")] {
        assert!(shown.lines().any(|shown| shown == line), "{shown}");
    }
    // Also before the next daemon has booted anything.
    host.kill_9("forkyardd");
    let seen: VmInspect = host.json(["inspect", "p"]);
    assert_eq!(seen.emulated_because.as_deref(), Some("asked for"));
    host.end();
}
