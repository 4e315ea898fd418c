//! Selection of the pages that a capture takes: two ways to ask the kernel.

use crate::{CaptureError, MemoryRegion, Pages, map_failed};
use forkyard_sys_host::pagemap::{PageMap, PagemapEntry};
use forkyard_sys_host::userfault::{ScannedRun, Scanner, WantedPages};
use forkyard_types::{PAGE_SIZE, PageNo};
use std::io;

/// Runs listed by one call. More only cost memory: a unit has few holes.
const RUNS: usize = 128;

/// Lists pages of a process, a stretch at a time.
#[derive(Debug)]
pub(crate) struct Listing {
    pid: u32,
    region: MemoryRegion,
    how: How,
}

#[derive(Debug)]
enum How {
    /// Any Linux: an entry for each page, looked at one by one.
    Map {
        map: PageMap,
        entries: Vec<PagemapEntry>,
    },
    /// The kernel looks, and renews what it lists.
    Scan {
        scanner: Scanner,
        runs: Vec<ScannedRun>,
    },
}

impl How {
    fn map(pid: u32) -> io::Result<Self> {
        let entries = Vec::new();
        PageMap::open(pid).map(|map| Self::Map { map, entries })
    }

    fn scan(scanner: Scanner) -> Self {
        let runs = vec![ScannedRun::default(); RUNS];
        Self::Scan { scanner, runs }
    }
}

impl Listing {
    /// Pages that are to be copied: what is listed here counts as copied.
    pub fn new(pid: u32, region: MemoryRegion, pages: Pages) -> Result<Self, CaptureError> {
        let how = match pages {
            Pages::Private => How::map(pid),
            Pages::PrivateAndTrack => Scanner::open(pid, WantedPages::Private).map(How::scan),
            Pages::Dirty => Scanner::open(pid, WantedPages::Written).map(How::scan),
        };
        Self::with(pid, region, how)
    }

    /// Lists the pages without changing the notes on them.
    pub fn to_look(pid: u32, region: MemoryRegion, pages: Pages) -> Result<Self, CaptureError> {
        let how = match pages {
            Pages::Private => How::map(pid),
            Pages::PrivateAndTrack => {
                Scanner::open_to_look(pid, WantedPages::Private).map(How::scan)
            }
            Pages::Dirty => Scanner::open_to_look(pid, WantedPages::Written).map(How::scan),
        };
        Self::with(pid, region, how)
    }

    fn with(pid: u32, region: MemoryRegion, how: io::Result<How>) -> Result<Self, CaptureError> {
        let how = how.map_err(|source| map_failed(pid, source))?;
        Ok(Self { pid, region, how })
    }

    /// Those of `count` pages from `first` on that are to be taken, in order.
    pub fn next(&mut self, first: PageNo, count: usize) -> Result<Vec<PageNo>, CaptureError> {
        let region = self.region;
        let address = |page| {
            let start = region.start.0;
            region
                .start
                .page(page)
                .ok_or(CaptureError::Region { start })
        };
        let failed = |source| map_failed(self.pid, source);
        match &mut self.how {
            How::Map { map, entries } => {
                entries.resize(count, PagemapEntry::default());
                map.read(address(first)?, entries).map_err(failed)?;
                Ok(entries
                    .iter()
                    .zip(first.0..)
                    .filter(|(entry, _)| entry.is_private())
                    .map(|(_, number)| PageNo(number))
                    .collect())
            }
            How::Scan { scanner, runs } => {
                let (mut at, end) = (address(first)?, address(PageNo(first.0 + count as u64))?);
                let mut pages = Vec::new();
                while at < end {
                    let (filled, reached) = scanner.scan(at, end, runs).map_err(failed)?;
                    for run in &runs[..filled] {
                        let first = (run.start().0 - region.start.0) / PAGE_SIZE as u64;
                        pages.extend((first..first + run.pages().0).map(PageNo));
                    }
                    at = reached;
                }
                Ok(pages)
            }
        }
    }
}
