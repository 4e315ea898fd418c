//! Reasons why guests are emulated rather than run by KVM, for users.

use crate::{AccelChoice, Host, accel_of};
use forkyard_records::VmRecord;
use forkyard_vmm::{Accel, Verdict};

impl Host {
    /// Says why guests that boot here are emulated, if they are and it is known: before the first
    /// has booted, KVM may not have been tested.
    pub(crate) fn emulation(&self) -> Option<String> {
        why_here(self.lives.accel.get(), self.parts.options.accel)
    }

    /// Says why a VM is emulated, if it is and that is known.
    pub(crate) fn emulation_of(&self, record: &VmRecord) -> Option<String> {
        let tested = self.lives.accel.get();
        why(accel_of(&record.accel), tested, self.parts.options.accel)
    }
}

fn why_here(tested: Option<&Verdict>, choice: AccelChoice) -> Option<String> {
    let verdict = tested.cloned().or_else(|| Verdict::untested(choice))?;
    match verdict.accel {
        Accel::Tcg => Some(verdict.why),
        Accel::Kvm => None,
    }
}

fn why(accel: Accel, tested: Option<&Verdict>, choice: AccelChoice) -> Option<String> {
    match (accel, tested.map(|verdict| verdict.accel)) {
        (Accel::Kvm, _) => None,
        (Accel::Tcg, Some(Accel::Tcg) | None) => why_here(tested, choice),
        // Its state is the emulator's: forks and moves keep it.
        (Accel::Tcg, Some(Accel::Kvm)) => Some(
            "it was booted, or made from a VM that was booted, without KVM, and keeps that; \
             new VMs of this host get KVM"
                .to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(accel: Accel) -> Verdict {
        Verdict {
            accel,
            why: "the test said so".into(),
        }
    }

    #[test]
    fn an_emulated_vm_has_the_reason_of_its_host() {
        let tested = verdict(Accel::Tcg);
        let why = why(Accel::Tcg, Some(&tested), AccelChoice::Auto);
        assert_eq!(why, Some(tested.why));
    }

    #[test]
    fn the_operators_choice_is_a_reason_before_anything_was_booted() {
        let why = why(Accel::Tcg, None, AccelChoice::Tcg);
        assert_eq!(why.as_deref(), Some("asked for"));
    }

    #[test]
    fn an_emulated_vm_among_those_with_kvm_is_told_from_them() {
        let why = why(Accel::Tcg, Some(&verdict(Accel::Kvm)), AccelChoice::Auto);
        assert!(why.is_some_and(|why| why.contains("new VMs of this host get KVM")));
    }

    #[test]
    fn a_vm_with_kvm_needs_no_reason() {
        for tested in [None, Some(verdict(Accel::Kvm)), Some(verdict(Accel::Tcg))] {
            assert_eq!(why(Accel::Kvm, tested.as_ref(), AccelChoice::Auto), None);
        }
        assert_eq!(why_here(Some(&verdict(Accel::Kvm)), AccelChoice::Tcg), None);
    }
}
