//! Samples for the policy, and caps of its findings.

use crate::Suspect;
use forkyard_friendly::{CpuUse, UseSample};
use forkyard_types::{PoliceBy, PoliceCap, Usage, VmId, VmUsage};

/// The least a VM is capped to, in per cent of a CPU: it is to answer still.
const LEAST: u32 = 5;

/// Computes VMs' use and demand between two looks, in CPUs that the host had itself.
/// One that was started again since has used nothing yet.
pub(crate) fn seen(before: &Usage, now: &Usage, by: PoliceBy) -> UseSample<VmId> {
    let stolen = now.stolen_us.saturating_sub(before.stolen_us) / u64::from(now.cpus.max(1));
    let elapsed = now.at_us.saturating_sub(before.at_us);
    let had = elapsed.saturating_sub(stolen).max(1) as f64;
    let used = |vm: &VmUsage| {
        let earlier = before.vms.iter().find(|one| one.vm.id == vm.vm.id)?;
        let used = vm.cpu_us.saturating_sub(earlier.cpu_us);
        let waited = vm.waited_us.saturating_sub(earlier.waited_us);
        let one = CpuUse {
            used: used as f64 / had,
            wanted: (used + waited) as f64 / had,
            weight: match by {
                PoliceBy::Vm => 1.0,
                PoliceBy::Vcpu => vm.vm.vcpus.into(),
            },
        };
        Some((vm.vm.id, one))
    };
    now.vms.iter().filter_map(used).collect()
}

/// Computes a cap, in per cent of a CPU.
#[expect(
    clippy::cast_possible_truncation,
    reason = "it is rounded, and far below what is too much"
)]
pub(crate) fn percent(share: f64) -> u32 {
    (share * 100.0).round().clamp(f64::from(LEAST), 1e6) as u32
}

/// Finds the process of a VM that runs here.
pub(crate) fn suspect(now: &Usage, vm: VmId) -> Option<Suspect> {
    let found = now.vms.iter().find(|one| one.vm.id == vm)?;
    Some(Suspect {
        vm,
        name: found.vm.name.to_string(),
        pid: found.vm.pid?,
    })
}

/// Tells whether a capped VM's process is still there.
pub(crate) fn is_there(now: &Usage, cap: &PoliceCap) -> bool {
    suspect(now, cap.vm).is_some_and(|found| found.pid == cap.pid)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use forkyard_types::{
        Address, ByteCount, Epoch, FamilyId, Labels, Mac, Member, Restart, VmState, VmView,
    };

    pub(crate) fn vm(name: &str, pid: u32) -> VmUsage {
        VmUsage {
            vm: VmView {
                id: VmId::random(),
                name: name.parse().expect("a name"),
                state: VmState::Running,
                family: FamilyId::random(),
                member: Member(0),
                parent: None,
                fork: None,
                epoch: Epoch::random(),
                image: "tiny".into(),
                vcpus: 1,
                granted: None,
                memory: ByteCount(1 << 28),
                address: Address {
                    ip: [10, 0, 0, 1].into(),
                    prefix: 16,
                    mac: Mac([2, 0, 0, 0, 0, 1]),
                },
                pid: Some(pid),
                accel: "tcg".into(),
                created: 7,
                published: Vec::new(),
                silence: None,
                memory_wait_percent: None,
                host: None,
                moving: None,
                awaits: Vec::new(),
                failure: None,
                labels: Labels::default(),
                ends: None,
                idle: None,
                asleep: false,
                restart: Restart::No,
                starts: None,
            },
            cpu_us: 0,
            waited_us: 0,
            resident: ByteCount(2 << 20),
            private: ByteCount(1 << 20),
            forks: 0,
            warm: 0,
        }
    }

    pub(crate) fn at(at_us: u64, vms: &[VmUsage]) -> Usage {
        Usage {
            at_us,
            cpus: 2,
            stolen_us: 0,
            vms: vms.to_vec(),
        }
    }

    #[test]
    fn what_is_waited_for_is_wanted_and_what_is_stolen_was_never_there() {
        let mut vm = vm("p", 100);
        let before = at(0, std::slice::from_ref(&vm));
        (vm.cpu_us, vm.waited_us, vm.vm.vcpus) = (800, 400, 2);
        // A fifth of the time of two CPUs.
        let id = vm.vm.id;
        let now = Usage {
            stolen_us: 400,
            ..at(1000, &[vm])
        };
        let wanted = |weight| CpuUse {
            used: 1.0,
            wanted: 1.5,
            weight,
        };
        assert_eq!(seen(&before, &now, PoliceBy::Vm)[&id], wanted(1.0));
        assert_eq!(seen(&before, &now, PoliceBy::Vcpu)[&id], wanted(2.0));
    }

    #[test]
    fn caps_are_shares_and_leave_something_to_answer_with() {
        assert_eq!(percent(0.333), 33);
        assert_eq!(percent(1.5), 150);
        assert_eq!(percent(0.0), LEAST);
    }

    #[test]
    fn a_cap_ends_with_the_process_it_is_of() {
        let mut one = vm("p", 100);
        let cap = PoliceCap {
            vm: one.vm.id,
            guest: "p".into(),
            pid: 100,
            percent: 50,
        };
        assert!(is_there(&at(0, std::slice::from_ref(&one)), &cap));
        one.vm.pid = Some(101);
        assert!(!is_there(&at(0, std::slice::from_ref(&one)), &cap));
        one.vm.pid = None;
        assert!(!is_there(&at(0, &[one]), &cap));
        assert!(!is_there(&at(0, &[]), &cap));
    }
}
