//! What has come of an image, and who waits for the rest.
//!
//! Pages lie in a memory file where they would lie in a layer that holds every page
//! of the image in order; what is zero is a hole. So a read is one read, and
//! all that is left to do in the end is to write the index.
//!
//! Decides who is to be answered and answers nobody: reads are values of any type
//! `W`, and none is dropped here.

use crate::touched::Run;
use forkyard_image::{Checksum, ImageError, Layer, LayerBuilder, Lineage, Slot};
use forkyard_sys_host::memory::{anonymous_file, seal};
use forkyard_transfer::{Loss, Page, PageSet, PageSink};
use forkyard_types::{ByteCount, ImageId, PAGE_SIZE, PageCount, PageNo};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most stretches of lost pages that are told of.
const MOST_TOLD: usize = 8;

/// How far an image is on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Pages that are here.
    pub have: PageCount,
    /// Whether all others can still come.
    pub alive: bool,
    /// The first of those that cannot, page and number.
    pub lost: Vec<(PageNo, PageCount)>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Arrivals<W> {
    image: ImageId,
    pages: PageCount,
    file: File,
    state: Mutex<State<W>>,
}

#[derive(Debug)]
struct State<W> {
    have: PageSet,
    /// Of them, those that are not zero.
    data: PageSet,
    sums: Vec<(PageNo, Checksum)>,
    /// Pages that somebody wanted to read.
    read: PageSet,
    /// How many of these were here already.
    used: u64,
    waiting: Vec<Wait<W>>,
    /// Pages that will not come.
    gone: BTreeSet<PageNo>,
    /// No page will come any more.
    lost: Option<Loss>,
    /// A page that came could not be kept.
    failed: bool,
}

#[derive(Debug)]
struct Wait<W> {
    run: Run,
    missing: u64,
    read: W,
}

/// What is to become of a read.
#[derive(Debug)]
pub(crate) enum Verdict<W> {
    /// Answer it now.
    Here(W),
    /// It is kept; ask for these.
    Kept(Vec<PageNo>),
    /// Answer it with an error.
    Never(W),
}

/// What has become of reads that were kept.
#[derive(Debug)]
pub(crate) enum Told<W> {
    /// Answer them.
    Answer(Vec<W>),
    /// Answer them with an error.
    Refuse(Vec<W>, String),
    /// Everything has come.
    Whole,
}

impl<W> Arrivals<W> {
    /// Nothing of an image has come yet.
    pub fn new(image: ImageId, pages: PageCount) -> io::Result<Self> {
        let too_large = || io::Error::from(ErrorKind::FileTooLarge);
        let end = Slot(pages.0).offset().ok_or_else(too_large)?;
        Ok(Self {
            image,
            pages,
            file: anonymous_file("forkyard-arrivals", ByteCount(end))?,
            state: Mutex::new(State {
                have: PageSet::new(pages),
                data: PageSet::new(pages),
                sums: Vec::new(),
                read: PageSet::new(pages),
                used: 0,
                waiting: Vec::new(),
                gone: BTreeSet::new(),
                lost: None,
                failed: false,
            }),
        })
    }

    /// Size of the image.
    pub fn pages(&self) -> PageCount {
        self.pages
    }

    /// What is here, and whether the rest can still come.
    pub fn progress(&self) -> Progress {
        let state = self.state();
        let alive = state.lost.is_none() && !state.failed && state.gone.is_empty();
        let (dead, failed) = (state.lost.is_some(), state.failed);
        let missing = |page: &PageNo| {
            !state.have.contains(*page) && (dead || failed || state.gone.contains(page))
        };
        let mut lost: Vec<(PageNo, PageCount)> = Vec::new();
        if !alive {
            for page in (0..self.pages.0).map(PageNo).filter(missing) {
                let told = lost.len();
                match lost.last_mut() {
                    Some((first, pages)) if first.0 + pages.0 == page.0 => pages.0 += 1,
                    Some(_) if told == MOST_TOLD => break,
                    Some(_) | None => lost.push((page, PageCount(1))),
                }
            }
        }
        Progress {
            have: state.have.count(),
            alive,
            lost,
        }
    }

    /// Somebody wants to read pages, which are inside the image.
    pub fn read(&self, run: Run, read: W) -> Verdict<W> {
        let mut state = self.state();
        let mut missing = Vec::new();
        for page in pages(run) {
            let (first, here) = (state.read.insert(page), state.have.contains(page));
            state.used += u64::from(first && here);
            if !here {
                missing.push(page);
            }
        }
        if missing.is_empty() {
            return Verdict::Here(read);
        }
        let never = missing.iter().any(|page| state.gone.contains(page));
        if never || state.failed || state.lost.is_some() {
            return Verdict::Never(read);
        }
        state.waiting.push(Wait {
            run,
            missing: missing.len() as u64,
            read,
        });
        Verdict::Kept(missing)
    }

    /// Pages that were here when they were first read.
    pub fn used(&self) -> u64 {
        self.state().used
    }

    /// Of these pages, those that are not here.
    pub fn away(&self, run: Run) -> Vec<PageNo> {
        let state = self.state();
        pages(run)
            .filter(|page| !state.have.contains(*page))
            .collect()
    }

    /// Pages that reads wait for.
    pub fn wanted(&self) -> Vec<PageNo> {
        let state = self.state();
        let wanted = state.waiting.iter().flat_map(|wait| pages(wait.run));
        let wanted: BTreeSet<_> = wanted.filter(|page| !state.have.contains(*page)).collect();
        wanted.into_iter().collect()
    }

    /// Copies pages that are here.
    pub fn copy(&self, first: PageNo, out: &mut [u8]) -> io::Result<()> {
        let offset = Slot(first.0).offset();
        let offset = offset.ok_or_else(|| io::Error::from(ErrorKind::FileTooLarge))?;
        self.file.read_exact_at(out, offset)?;
        // The index of the layer may lie where zero pages are.
        let state = self.state();
        for (page, bytes) in (first.0..).zip(out.chunks_mut(PAGE_SIZE)) {
            if !state.data.contains(PageNo(page)) {
                bytes.fill(0);
            }
        }
        Ok(())
    }

    /// The layer that holds the image, once everything is here.
    pub fn layer(&self) -> Result<Layer, ImageError> {
        let lineage = Lineage {
            image: self.image,
            parent: None,
        };
        let mut builder = LayerBuilder::new(lineage, self.pages);
        for (page, checksum) in &self.state().sums {
            builder.data(*page, Slot(page.0), *checksum);
        }
        builder.finish(&self.file)?;
        let failed = |source| ImageError::Write { source };
        seal(&self.file).map_err(failed)?;
        Layer::open(self.file.try_clone().map_err(failed)?)
    }

    fn state(&self) -> MutexGuard<'_, State<W>> {
        // Consistent at every point at which its methods can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, page: PageNo, bytes: &Page) -> io::Result<()> {
        let offset = Slot(page.0).offset();
        let offset = offset.ok_or_else(|| io::Error::from(ErrorKind::FileTooLarge))?;
        self.file.write_all_at(bytes, offset)
    }

    /// Pages are here; whom to tell what.
    fn came(&self, run: Run, checksum: Option<Checksum>) -> Vec<Told<W>> {
        let mut state = self.state();
        let (mut told, mut new) = (Vec::new(), false);
        for page in pages(run) {
            if !state.have.insert(page) {
                continue;
            }
            new = true;
            if let Some(checksum) = checksum {
                state.data.insert(page);
                state.sums.push((page, checksum));
            }
            let waiting = std::mem::take(&mut state.waiting);
            let (mut answer, mut still) = (Vec::new(), Vec::new());
            for mut wait in waiting {
                wait.missing -= u64::from(has(wait.run, page));
                match wait.missing {
                    0 => answer.push(wait.read),
                    _ => still.push(wait),
                }
            }
            state.waiting = still;
            if !answer.is_empty() {
                told.push(Told::Answer(answer));
            }
        }
        if new && state.have.is_full() {
            told.push(Told::Whole);
        }
        told
    }

    /// Reads that wait for such a page are refused.
    fn refuse(
        &self,
        change: impl FnOnce(&mut State<W>),
        which: impl Fn(Run) -> bool,
        why: String,
    ) -> Told<W> {
        let mut state = self.state();
        change(&mut state);
        let waiting = std::mem::take(&mut state.waiting);
        let (refused, still): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|wait| which(wait.run));
        state.waiting = still;
        let reads = refused.into_iter().map(|wait| wait.read).collect();
        Told::Refuse(reads, why)
    }
}

/// Puts pages that come where they belong, and tells what became of reads.
pub(crate) struct Reader<W, T> {
    pub arrivals: Arc<Arrivals<W>>,
    pub tell: T,
}

impl<W, T: Fn(Told<W>)> PageSink for Reader<W, T> {
    fn page(&mut self, page: PageNo, bytes: &Page) {
        let told = match self.arrivals.write(page, bytes) {
            Ok(()) => {
                let run = Run {
                    first: page,
                    pages: PageCount(1),
                };
                self.arrivals.came(run, Some(Checksum::of(bytes)))
            }
            // Without room for it, it would read as zero.
            Err(error) => {
                let fail = |state: &mut State<W>| state.failed = true;
                vec![self.arrivals.refuse(fail, |_| true, error.to_string())]
            }
        };
        told.into_iter().for_each(&self.tell);
    }

    fn zeros(&mut self, run: forkyard_transfer::Run) {
        let run = Run {
            first: run.first,
            pages: run.pages,
        };
        let told = self.arrivals.came(run, None);
        told.into_iter().for_each(&self.tell);
    }

    fn gone(&mut self, page: PageNo) {
        let gone = |state: &mut State<W>| {
            state.gone.insert(page);
        };
        let why = format!("the host they are on cannot read {page}");
        (self.tell)(self.arrivals.refuse(gone, |run| has(run, page), why));
    }

    fn lost(&mut self, why: Loss) {
        let lost = |state: &mut State<W>| state.lost = Some(why);
        (self.tell)(self.arrivals.refuse(lost, |_| true, why.to_string()));
    }
}

fn pages(run: Run) -> impl Iterator<Item = PageNo> {
    (run.first.0..run.first.0.saturating_add(run.pages.0)).map(PageNo)
}

fn has(run: Run, page: PageNo) -> bool {
    (run.first.0..run.first.0.saturating_add(run.pages.0)).contains(&page.0)
}
