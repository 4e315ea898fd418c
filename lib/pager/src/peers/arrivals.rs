//! Pages that have come of an image, and the reads that wait for the rest.
//!
//! Pages lie in a memory file where they would lie in a layer that holds every page
//! of the image in order; what is zero is a hole. So a read is one read, and
//! all that is left to do in the end is to write the index.
//!
//! Decides which reads are to be answered and answers none: reads are values of any type
//! `W`, and none is dropped here.

mod below;
mod progress;
mod waiting;

use crate::touched::Run;
pub(crate) use below::Below;
use forkyard_image::{Checksum, ImageError, Layer, LayerBuilder, Lineage, Slot};
use forkyard_sys_host::memory::{anonymous_file, seal};
use forkyard_transfer::{Loss, Page, PageSet, PageSink};
use forkyard_types::{ByteCount, ImageId, PAGE_SIZE, PageCount, PageNo};
use nix::errno::Errno;
use nix::sys::uio::pwritev;
pub(crate) use progress::Progress;
use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, ErrorKind, IoSlice},
    os::unix::fs::FileExt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use waiting::Waiting;

/// Most pages, and runs of zero ones, that are kept back.
const MOST_KEPT: usize = 128;
/// Most stretches of lost pages that are told of.
const MOST_TOLD: usize = 8;

/// See the module.
#[derive(Debug)]
pub(crate) struct Arrivals<W> {
    image: ImageId,
    pages: PageCount,
    /// Pages that come before all others; if there are none of these, all but the last.
    first: PageSet,
    /// Pages that come after all others.
    last: PageSet,
    file: File,
    /// Image below, which has all pages that do not come.
    below: Option<Below>,
    state: Mutex<State<W>>,
    /// Held while pages are put in their place. A read that waits for one is answered before it is
    /// there; a count of what is there waits for it.
    putting: Mutex<()>,
}

#[derive(Debug)]
struct State<W> {
    have: PageSet,
    /// Of them, those that are not zero.
    data: PageSet,
    sums: Vec<(PageNo, Checksum)>,
    /// Pages that were wanted by reads.
    read: PageSet,
    /// Number of these that were here already.
    used: u64,
    waiting: Waiting<W>,
    /// Pages that will not come.
    gone: BTreeSet<PageNo>,
    /// No page will come any more.
    lost: Option<Loss>,
    /// A page that came could not be kept.
    failed: bool,
}

/// Decision on a read.
#[derive(Debug)]
pub(crate) enum Verdict<W> {
    /// Answer it now.
    Here(W),
    /// The read is kept; ask for these.
    Kept(Vec<PageNo>),
    /// Answer it with an error.
    Never(W),
}

/// Outcome of reads that were kept.
#[derive(Debug)]
pub(crate) enum ReadOutcome<'a, W> {
    /// Answer them; these pages have just come, and some of them may wait for one.
    Answer(Vec<W>, Fresh<'a>),
    /// Answer them with an error.
    Refuse(Vec<W>, String),
    /// Everything has come.
    Whole,
}

/// Pages that have just come, in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fresh<'a>(&'a [(PageNo, &'a [u8])]);

impl<'a> Fresh<'a> {
    /// A page, if it has.
    pub fn page(self, page: PageNo) -> Option<&'a [u8]> {
        let at = self.0.binary_search_by_key(&page, |(page, _)| *page);
        at.ok()
            .and_then(|at| self.0.get(at))
            .map(|(_, bytes)| *bytes)
    }
}

impl<W> Arrivals<W> {
    /// Nothing of an image has come yet.
    pub fn new(image: ImageId, pages: PageCount) -> io::Result<Self> {
        let too_large = || io::Error::from(ErrorKind::FileTooLarge);
        let end = Slot(pages.0).offset().ok_or_else(too_large)?;
        Ok(Self {
            image,
            pages,
            first: PageSet::new(pages),
            last: PageSet::new(pages),
            file: anonymous_file("forkyard-arrivals", ByteCount(end))?,
            below: None,
            state: Mutex::new(State {
                have: PageSet::new(pages),
                data: PageSet::new(pages),
                sums: Vec::new(),
                read: PageSet::new(pages),
                used: 0,
                waiting: Waiting::default(),
                gone: BTreeSet::new(),
                lost: None,
                failed: false,
            }),
            putting: Mutex::new(()),
        })
    }

    /// Tells pages that come before all others, and after all others, from the rest.
    pub fn with_order(
        mut self,
        first: &[forkyard_transfer::Run],
        last: &[forkyard_transfer::Run],
    ) -> Self {
        for (runs, set) in [(first, &mut self.first), (last, &mut self.last)] {
            for page in runs.iter().flat_map(|run| run.iter()) {
                set.insert(page);
            }
        }
        self
    }

    /// Pages that come first.
    pub fn first_of(&self) -> PageCount {
        match self.first.count() {
            PageCount(0) => PageCount(self.pages.0 - self.last.count().0),
            some => some,
        }
    }

    fn is_first(&self, page: PageNo) -> bool {
        match self.first.count().0 {
            0 => !self.last.contains(page),
            _ => self.first.contains(page),
        }
    }

    /// Size of the image.
    pub fn pages(&self) -> PageCount {
        self.pages
    }

    /// Returns the progress, and whether the rest can still come.
    pub fn progress(&self) -> Progress {
        let _put = self.putting();
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
            first: self.first(&state),
            alive,
            lost,
        }
    }

    /// Pages that are missing and come first.
    fn first(&self, state: &State<W>) -> PageCount {
        let missing = self.pages.0.saturating_sub(state.have.count().0);
        if self.first_of() == self.pages || missing == 0 {
            return PageCount(missing);
        }
        let pages = (0..self.pages.0).map(PageNo);
        let first = pages.filter(|page| self.is_first(*page) && !state.have.contains(*page));
        PageCount(first.count() as u64)
    }

    /// Takes a read of pages, which are inside the image.
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
        state.waiting.add(run, &missing, read);
        Verdict::Kept(missing)
    }

    /// Pages that were here when they were first read.
    pub fn used(&self) -> u64 {
        let _put = self.putting();
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
        self.state().waiting.pages()
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
        drop(state);
        match &self.below {
            Some(below) => below.fill(first, out),
            None => Ok(()),
        }
    }

    /// The layer that holds the image, once everything is here.
    pub fn layer(&self) -> Result<Layer, ImageError> {
        let lineage = Lineage {
            image: self.image,
            parent: self.below.as_ref().map(Below::id),
        };
        let mut builder = LayerBuilder::new(lineage, self.pages);
        let state = self.state();
        for (page, checksum) in &state.sums {
            builder.data(*page, Slot(page.0), *checksum);
        }
        if let Some(below) = &self.below {
            let zero = below.changed().filter(|page| !state.data.contains(*page));
            zero.for_each(|page| builder.zero(page));
        }
        drop(state);
        builder.finish(&self.file)?;
        let failed = |source| ImageError::Write { source };
        seal(&self.file).map_err(failed)?;
        Layer::open(self.file.try_clone().map_err(failed)?)
    }

    fn state(&self) -> MutexGuard<'_, State<W>> {
        // Consistent at every point at which its methods can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn putting(&self) -> MutexGuard<'_, ()> {
        self.putting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads that wait for one of these pages and for nothing else.
    fn alone(&self, pages: &[(PageNo, &[u8])]) -> Vec<W> {
        let mut state = self.state();
        let reads = pages
            .iter()
            .flat_map(|(page, _)| state.waiting.alone(*page));
        reads.collect()
    }

    /// Writes pages, which are in order.
    fn write(&self, pages: &[(PageNo, &[u8])]) -> io::Result<()> {
        let adjacent = |a: &(PageNo, &[u8]), b: &(PageNo, &[u8])| a.0.0 + 1 == b.0.0;
        for run in pages.chunk_by(adjacent) {
            let offset = run.first().and_then(|(page, _)| Slot(page.0).offset());
            let offset = offset.ok_or_else(|| io::Error::from(ErrorKind::FileTooLarge))?;
            let mut slices: Vec<_> = run.iter().map(|(_, bytes)| IoSlice::new(bytes)).collect();
            write_all_at(&self.file, &mut slices, offset)?;
        }
        Ok(())
    }

    /// Takes pages that are here; returns the reads to answer.
    fn came<'a>(
        &self,
        all: &[(Run, Option<Checksum>)],
        fresh: Fresh<'a>,
    ) -> Vec<ReadOutcome<'a, W>> {
        let mut state = self.state();
        let (mut answer, mut new) = (Vec::new(), false);
        for (run, checksum) in all {
            for page in pages(*run) {
                if !state.have.insert(page) {
                    continue;
                }
                new = true;
                if let Some(checksum) = checksum {
                    state.data.insert(page);
                    state.sums.push((page, *checksum));
                }
                state.waiting.came(page, &mut answer);
            }
        }
        let answer = (!answer.is_empty()).then_some(ReadOutcome::Answer(answer, fresh));
        let whole = (new && state.have.is_full()).then_some(ReadOutcome::Whole);
        answer.into_iter().chain(whole).collect()
    }

    /// Reads that wait for such a page are refused.
    fn refuse(
        &self,
        change: impl FnOnce(&mut State<W>),
        which: impl Fn(Run) -> bool,
        why: String,
    ) -> ReadOutcome<'static, W> {
        let mut state = self.state();
        change(&mut state);
        ReadOutcome::Refuse(state.waiting.take(which), why)
    }
}

/// Puts pages that come where they belong, those of one batch of packets together, and
/// tells what became of reads.
pub(crate) struct Reader<W, T> {
    arrivals: Arc<Arrivals<W>>,
    tell: T,
    /// Pages that came and are not in their place: pages of data, one after the
    /// other as they came, and the runs that they and the zero ones are.
    bytes: Vec<u8>,
    runs: Vec<(Run, Kind)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Data,
    Zero,
}

impl<W, T: Fn(ReadOutcome<'_, W>)> Reader<W, T> {
    /// `tell` is told what becomes of reads that wait.
    pub fn new(arrivals: Arc<Arrivals<W>>, tell: T) -> Self {
        Self {
            arrivals,
            tell,
            bytes: Vec::new(),
            runs: Vec::new(),
        }
    }

    /// Writes what is kept back, and tells what has become of it.
    fn put(&self) -> io::Result<()> {
        let _putting = self.arrivals.putting();
        let mut pages = self.bytes.chunks(PAGE_SIZE);
        let came = self.runs.iter().map(|(run, kind)| {
            let bytes = match kind {
                Kind::Data => pages.next(),
                Kind::Zero => None,
            };
            (*run, bytes)
        });
        let came: Vec<_> = came.collect();
        let data = came
            .iter()
            .filter_map(|(run, bytes)| Some((run.first, (*bytes)?)));
        let mut data: Vec<_> = data.collect();
        data.sort_by_key(|(page, _)| *page);
        let alone = self.arrivals.alone(&data);
        if !alone.is_empty() {
            (self.tell)(ReadOutcome::Answer(alone, Fresh(&data)));
        }
        self.arrivals.write(&data)?;
        let summed = came
            .iter()
            .map(|(run, bytes)| (*run, bytes.map(Checksum::of)));
        let summed: Vec<_> = summed.collect();
        let told = self.arrivals.came(&summed, Fresh(&data));
        told.into_iter().for_each(&self.tell);
        Ok(())
    }

    fn keep(&mut self, run: Run, kind: Kind) {
        self.runs.push((run, kind));
        if self.runs.len() >= MOST_KEPT {
            self.flush();
        }
    }
}

impl<W, T: Fn(ReadOutcome<'_, W>)> PageSink for Reader<W, T> {
    fn page(&mut self, page: PageNo, bytes: &Page) {
        self.bytes.extend_from_slice(bytes);
        let pages = PageCount(1);
        self.keep(Run { first: page, pages }, Kind::Data);
    }

    fn zeros(&mut self, run: forkyard_transfer::Run) {
        let (first, pages) = (run.first, run.pages);
        self.keep(Run { first, pages }, Kind::Zero);
    }

    fn flush(&mut self) {
        if self.runs.is_empty() {
            return;
        }
        if let Err(error) = self.put() {
            // Without room for it, it would read as zero.
            let fail = |state: &mut State<W>| state.failed = true;
            (self.tell)(self.arrivals.refuse(fail, |_| true, error.to_string()));
        }
        self.bytes.clear();
        self.runs.clear();
    }

    fn gone(&mut self, page: PageNo) {
        self.flush();
        let gone = |state: &mut State<W>| {
            state.gone.insert(page);
        };
        let why = format!("the host they are on cannot read {page}");
        (self.tell)(self.arrivals.refuse(gone, |run| has(run, page), why));
    }

    fn lost(&mut self, why: Loss) {
        self.flush();
        let lost = |state: &mut State<W>| state.lost = Some(why);
        (self.tell)(self.arrivals.refuse(lost, |_| true, why.to_string()));
    }
}

/// As `write_all_at`, of several at once.
fn write_all_at(file: &File, mut slices: &mut [IoSlice<'_>], mut offset: u64) -> io::Result<()> {
    while !slices.is_empty() {
        let at = i64::try_from(offset).map_err(|_| io::Error::from(ErrorKind::FileTooLarge))?;
        match pwritev(file, slices, at) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => {
                IoSlice::advance_slices(&mut slices, written);
                offset += written as u64;
            }
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn pages(run: Run) -> impl Iterator<Item = PageNo> {
    (run.first.0..run.first.0.saturating_add(run.pages.0)).map(PageNo)
}

fn has(run: Run, page: PageNo) -> bool {
    (run.first.0..run.first.0.saturating_add(run.pages.0)).contains(&page.0)
}

#[cfg(test)]
mod tests;
