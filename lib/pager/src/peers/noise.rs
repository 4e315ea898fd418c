//! Pages of an image that are as if drawn: encrypted, or compressed already.
//!
//! No program runs from such a page and no kernel keeps its tables in one: they are data. Over
//! a long link they go last, for a clone is likely to need all others before.

use crate::PagerRefusal;
use crate::service::Service;
use forkyard_image::Image;
use forkyard_transfer::{Page, Run, is_noise};
use forkyard_types::{ImageId, PAGE_SIZE, PageCount, PageNo};
use std::cmp::Reverse;

/// Stretches that are shorter are not worth naming.
const LEAST: u64 = 8;
/// Most stretches that are named, the longest ones: they travel with the descriptor.
const MOST: usize = 2048;

impl Service {
    /// Finds the stretches of an image, which must be all here. Reads all of its data.
    pub fn noise(&self, image: ImageId) -> Result<Vec<Run>, PagerRefusal> {
        let (_, image, _) = self.catalog().offered(image)?;
        Ok(longest(stretches(image.pages(), |page| {
            drawn(&image, page)
        })))
    }
}

/// Returns true if a page of an image is noise. One that cannot be read is not.
fn drawn(image: &Image, page: PageNo) -> bool {
    let mut bytes: Page = [0; PAGE_SIZE];
    image.checksum(page).is_some() && image.read(page, &mut bytes).is_ok() && is_noise(&bytes)
}

fn stretches(size: PageCount, is: impl Fn(PageNo) -> bool) -> Vec<Run> {
    super::over::stretches((0..size.0).map(PageNo).filter(|page| is(*page)))
}

/// The longest of these, in their order.
fn longest(mut runs: Vec<Run>) -> Vec<Run> {
    runs.retain(|run| run.pages.0 >= LEAST);
    runs.sort_by_key(|run| Reverse(run.pages.0));
    runs.truncate(MOST);
    runs.sort_by_key(|run| run.first.0);
    runs
}

/// Computes the rest of an image beside these runs, which are in order.
pub(super) fn rest(size: PageCount, runs: &[Run]) -> Vec<Run> {
    let mut rest = Vec::new();
    let mut from = 0;
    let ends = Run {
        first: PageNo(size.0),
        pages: PageCount(0),
    };
    for run in runs.iter().chain([&ends]) {
        let pages = PageCount(run.first.0.min(size.0).saturating_sub(from));
        if pages.0 > 0 {
            rest.push(Run {
                first: PageNo(from),
                pages,
            });
        }
        from = from.max(run.first.0.saturating_add(run.pages.0));
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: u64, pages: u64) -> Run {
        Run {
            first: PageNo(first),
            pages: PageCount(pages),
        }
    }

    #[test]
    fn stretches_are_as_long_as_they_are_and_short_ones_are_not_named() {
        let is = |page: PageNo| (3..20).contains(&page.0) || page.0 == 30 || page.0 >= 90;
        let all = stretches(PageCount(100), is);
        assert_eq!(all, [run(3, 17), run(30, 1), run(90, 10)]);
        assert_eq!(longest(all), [run(3, 17), run(90, 10)]);
    }

    #[test]
    fn what_is_left_of_an_image_is_all_else_in_order() {
        let size = PageCount(100);
        assert_eq!(
            rest(size, &[run(3, 17), run(90, 10)]),
            [run(0, 3), run(20, 70)]
        );
        assert_eq!(rest(size, &[]), [run(0, 100)]);
        assert_eq!(rest(size, &[run(0, 50)]), [run(50, 50)]);
        assert_eq!(rest(size, &[run(0, 200)]), []);
    }
}
