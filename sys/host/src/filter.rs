//! Lists of the system calls that a program may make.
//!
//! A call that is on its program's list is made; any other, and any by the
//! numbers of another architecture, is answered `ENOSYS`, as by a kernel that does
//! not have it. Programs and their libraries know how to do without: a call that a
//! list forgot costs a feature, not a process. For a program that was taken over a
//! refusal is as good as its end: what it asked for does not happen.
//!
//! Decides nothing: the lists are the callers'.

mod lists;

pub use lists::{FILES, ITSELF, RESTRICTED};

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};
use std::{collections::BTreeMap, io, sync::Arc};

/// A system call on a list.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    number: libc::c_long,
    only: Option<Only>,
}

/// Values that an argument may have in the bits of `mask`.
#[derive(Clone, Copy, Debug)]
struct Only {
    argument: u8,
    mask: u64,
    values: &'static [u64],
}

impl Call {
    /// The call of this number, whatever its arguments.
    pub const fn any(number: libc::c_long) -> Self {
        Self { number, only: None }
    }

    /// The call of this number if its argument, counted from 0, is one of `values` in
    /// the bits of `mask`.
    pub const fn only(
        number: libc::c_long,
        argument: u8,
        mask: u64,
        values: &'static [u64],
    ) -> Self {
        let only = Some(Only {
            argument,
            mask,
            values,
        });
        Self { number, only }
    }

    fn rules(&self) -> Result<Vec<SeccompRule>, BackendError> {
        let Some(Only {
            argument,
            mask,
            values,
        }) = self.only
        else {
            return Ok(Vec::new());
        };
        let rule = |&value: &u64| {
            let equal = SeccompCmpOp::MaskedEq(mask);
            let condition =
                SeccompCondition::new(argument, SeccompCmpArgLen::Qword, equal, value & mask)?;
            SeccompRule::new(vec![condition])
        };
        values.iter().map(rule).collect()
    }
}

/// A list, as the kernel takes it.
#[derive(Clone, Debug)]
pub struct Filter(Arc<BpfProgram>);

impl Filter {
    /// Allows these calls and no others.
    pub fn allowing(calls: &[Call]) -> io::Result<Self> {
        let program = || -> Result<BpfProgram, BackendError> {
            let mut rules = BTreeMap::new();
            for call in calls {
                rules.insert(call.number, call.rules()?);
            }
            let refused = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
            let arch = TargetArch::try_from(std::env::consts::ARCH)?;
            SeccompFilter::new(rules, refused, SeccompAction::Allow, arch)?.try_into()
        };
        let program = program().map_err(io::Error::other)?;
        Ok(Self(Arc::new(program)))
    }

    /// Puts it on the calling thread and its children, for good, and with it that
    /// none of them can gain privileges. Allocates nothing if it succeeds.
    pub(crate) fn apply(&self) -> io::Result<()> {
        seccompiler::apply_filter(&self.0).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: [Call; 3] = [
        Call::any(libc::SYS_exit),
        Call::any(libc::SYS_futex),
        Call::only(libc::SYS_fcntl, 1, u64::MAX, &[libc::F_GETFD as u64]),
    ];

    /// Returns the errors of calls that a thread under a list makes.
    fn told() -> [Option<i32>; 3] {
        // SAFETY: calls that take integers alone.
        let call = |number: libc::c_long, command: libc::c_int| unsafe {
            (libc::syscall(number, 0, command, 0) < 0).then(|| *libc::__errno_location())
        };
        [
            call(libc::SYS_fcntl, libc::F_GETFD),
            call(libc::SYS_fcntl, libc::F_GETFL),
            call(libc::SYS_getppid, 0),
        ]
    }

    #[test]
    fn what_is_not_on_a_list_does_not_happen() {
        let filter = Filter::allowing(&LIST).expect("a program");
        // A process of its own: the end of a thread makes other calls.
        // SAFETY: the child makes system calls alone.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let refused = Some(libc::ENOSYS);
            let as_it_should = filter.apply().is_ok() && told() == [None, refused, refused];
            // SAFETY: ends the process at once; `exit` ends its one thread.
            unsafe { libc::syscall(libc::SYS_exit, i32::from(!as_it_should)) };
        }
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}
