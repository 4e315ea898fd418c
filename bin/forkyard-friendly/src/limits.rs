//! Limits of the group: how many tasks there may be, and how much CPU time.

use crate::{
    group::{CgroupVersion, Group},
    guard::{Guard, Word},
};
use std::{fs, io, path::PathBuf};

/// A file of the group, and what it held before.
#[derive(Debug)]
struct Setting {
    path: PathBuf,
    before: String,
    now: String,
}

impl Setting {
    /// The guard hears of what it held before anything is changed.
    fn of(path: PathBuf, guard: &mut Guard) -> io::Result<Self> {
        let before = fs::read_to_string(&path)?.trim().to_owned();
        guard.tell(Word::File(path.clone(), before.clone()))?;
        Ok(Self {
            path,
            now: before.clone(),
            before,
        })
    }

    fn set(&mut self, value: Option<String>) -> io::Result<()> {
        let value = value.unwrap_or_else(|| self.before.clone());
        if value != self.now {
            fs::write(&self.path, &value)?;
            self.now = value;
        }
        Ok(())
    }
}

/// Limit on the number of the group's tasks.
#[derive(Debug)]
pub struct Births {
    most: Setting,
    current: PathBuf,
}

impl Births {
    /// None if the group has no such limit.
    pub fn of(group: &Group, guard: &mut Guard) -> io::Result<Option<Self>> {
        let found = group.file("pids.max", "pids", "pids.max");
        found
            .map(|(path, _)| {
                Ok(Self {
                    current: path.with_file_name("pids.current"),
                    most: Setting::of(path, guard)?,
                })
            })
            .transpose()
    }

    /// Leaves room for so many more than there are; without a number, for as many
    /// as before. Never for more than before.
    pub fn set(&mut self, room: Option<u32>) -> io::Result<()> {
        let Some(room) = room else {
            return self.most.set(None);
        };
        let current: u64 = fs::read_to_string(&self.current)?
            .trim()
            .parse()
            .map_err(io::Error::other)?;
        let before: u64 = self.most.before.parse().unwrap_or(u64::MAX);
        let most = current.saturating_add(room.into()).min(before);
        self.most.set(Some(most.to_string()))
    }
}

/// Limit on the group's CPU time.
#[derive(Debug)]
pub struct Quota {
    setting: Setting,
    version: CgroupVersion,
    period_us: u32,
    /// Limit that it had before, in CPUs.
    before: f64,
}

impl Quota {
    /// None if the group has no such limit.
    pub fn of(group: &Group, guard: &mut Guard) -> io::Result<Option<Self>> {
        let Some((path, version)) = group.file("cpu.max", "cpu", "cpu.cfs_quota_us") else {
            return Ok(None);
        };
        let setting = Setting::of(path, guard)?;
        let mut had = setting.before.split(' ').map(str::to_owned);
        let (quota, period) = (had.next().unwrap_or_default(), had.next());
        let period = match version {
            CgroupVersion::V2 => period.unwrap_or_default(),
            CgroupVersion::V1 => {
                fs::read_to_string(setting.path.with_file_name("cpu.cfs_period_us"))?
            }
        };
        let period_us = period.trim().parse().unwrap_or(100_000);
        Ok(Some(Self {
            before: before(&quota, period_us),
            setting,
            version,
            period_us,
        }))
    }

    /// Gives one thread this part of a CPU, or what there was before if that is less;
    /// without one, what there was before.
    pub fn set(&mut self, duty: Option<f64>) -> io::Result<()> {
        let duty = duty.filter(|duty| *duty < self.before);
        // The kernel takes no less than a millisecond.
        let quota = |duty: f64| (f64::from(self.period_us) * duty).max(1_000.0).round();
        let value = duty.map(|duty| match self.version {
            CgroupVersion::V2 => format!("{} {}", quota(duty), self.period_us),
            CgroupVersion::V1 => quota(duty).to_string(),
        });
        self.setting.set(value)
    }
}

/// CPUs that a quota comes to. What is no number of microseconds, or less than none, is no
/// limit.
fn before(quota: &str, period_us: u32) -> f64 {
    match quota.parse::<u32>() {
        Ok(quota) => f64::from(quota) / f64::from(period_us.max(1)),
        Err(_) => f64::INFINITY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_less_already_is_not_given_more() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("limit");
        let read = || fs::read_to_string(&path).expect("read");
        for (version, had, less) in [
            (CgroupVersion::V2, "20000 50000", "10000 50000"),
            (CgroupVersion::V1, "20000", "10000"),
        ] {
            fs::write(&path, had).expect("written");
            let mut quota = Quota {
                setting: Setting {
                    path: path.clone(),
                    before: had.to_owned(),
                    now: had.to_owned(),
                },
                version,
                period_us: 50_000,
                before: before("20000", 50_000),
            };
            quota.set(Some(0.5)).expect("set");
            assert_eq!(read(), had);
            quota.set(Some(0.2)).expect("set");
            assert_eq!(read(), less);
            quota.set(None).expect("set");
            assert_eq!(read(), had);
        }
    }

    #[test]
    fn what_is_no_quota_is_no_limit() {
        for none in ["max", "-1", ""] {
            assert_eq!(before(none, 100_000), f64::INFINITY, "{none}");
        }
        assert_eq!(before("150000", 100_000), 1.5);
    }
}
