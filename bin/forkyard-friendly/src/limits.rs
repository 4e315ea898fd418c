//! Limits of the group: how many tasks there may be, and how much CPU time.

use crate::{
    group::{Group, Version},
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

/// How many tasks the group may have.
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

/// How much CPU time the group may have.
#[derive(Debug)]
pub struct Quota {
    setting: Setting,
    version: Version,
    period_us: u32,
}

impl Quota {
    /// None if the group has no such limit.
    pub fn of(group: &Group, guard: &mut Guard) -> io::Result<Option<Self>> {
        let Some((path, version)) = group.file("cpu.max", "cpu", "cpu.cfs_quota_us") else {
            return Ok(None);
        };
        let period = match version {
            Version::V2 => None,
            Version::V1 => {
                let period = fs::read_to_string(path.with_file_name("cpu.cfs_period_us"))?;
                period.trim().parse().ok()
            }
        };
        Ok(Some(Self {
            setting: Setting::of(path, guard)?,
            version,
            period_us: period.unwrap_or(100_000),
        }))
    }

    /// Gives one thread this part of a CPU; without one, what there was before.
    pub fn set(&mut self, duty: Option<f64>) -> io::Result<()> {
        // The kernel takes no less than a millisecond.
        let quota = |duty: f64| (f64::from(self.period_us) * duty).max(1_000.0).round();
        let value = duty.map(|duty| match self.version {
            Version::V2 => format!("{} {}", quota(duty), self.period_us),
            Version::V1 => quota(duty).to_string(),
        });
        self.setting.set(value)
    }
}
