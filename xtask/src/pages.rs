//! Links between pages of the documentation: files that are there, and headings of them. And what the tour
//! names of the code.

use crate::walk;
use anyhow::{Context, Result, bail};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The page with the path of a fork.
const TOUR: &str = "docs/tour.md";
/// Folders of pages, beside the root's own.
const PLACES: [&str; 2] = ["docs", "sdk"];
/// Folders with pages of others.
const SKIPPED: [&str; 2] = ["node_modules", "target"];

/// Lists every link that leads nowhere, and what the tour's walk names and is not there.
pub fn check(root: &Path) -> Result<()> {
    let mut pages = Vec::new();
    collect(root, false, &mut pages)?;
    for place in PLACES {
        collect(&root.join(place), true, &mut pages)?;
    }
    let mut broken = Vec::new();
    for page in pages {
        let text = fs::read_to_string(&page).with_context(|| page.display().to_string())?;
        if page.strip_prefix(root) == Ok(Path::new(TOUR)) {
            let wrong = walk::broken(root, &text).into_iter();
            broken.extend(wrong.map(|why| format!("{TOUR}: {why}")));
        }
        for link in links(&text) {
            if let Err(why) = follow(&page, &text, &link) {
                let page = page.strip_prefix(root).unwrap_or(&page);
                broken.push(format!("{}: {link}: {why}", page.display()));
            }
        }
    }
    if !broken.is_empty() {
        bail!("{}", broken.join("\n"));
    }
    Ok(())
}

/// Finds out whether a link leads somewhere. Those to other sites are not asked.
fn follow(page: &Path, text: &str, link: &str) -> Result<(), String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return Ok(());
    }
    let (file, heading) = link.split_once('#').unwrap_or((link, ""));
    let target = page.parent().unwrap_or(page).join(file);
    let text = match file {
        "" => text.to_owned(),
        _ if !target.exists() => return Err("there is no such file".into()),
        _ if heading.is_empty() => return Ok(()),
        _ => fs::read_to_string(&target).map_err(|error| error.to_string())?,
    };
    match heading.is_empty() || headings(&text).iter().any(|known| known == heading) {
        true => Ok(()),
        false => Err("there is no such heading".into()),
    }
}

/// Gives the targets of a page's links and pictures.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(text) {
        // What stands between backticks is no link.
        let plain: String = line.split('`').step_by(2).collect::<Vec<_>>().join("``");
        for rest in plain.split("](").skip(1) {
            if let Some((target, _)) = rest.split_once(')') {
                found.push(target.to_owned());
            }
        }
    }
    found
}

/// Gives the names by which a page's headings are linked to.
fn headings(text: &str) -> Vec<String> {
    let names = prose(text).filter_map(|line| {
        let title = line.trim_start_matches('#').strip_prefix(' ')?;
        let kept = title.to_lowercase();
        let kept = kept
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let name = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        line.starts_with('#').then_some(name)
    });
    names.collect()
}

/// Gives the lines of a page that are no code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence && !line.starts_with("    ")
    })
}

fn collect(folder: &Path, below: bool, into: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry.with_context(|| folder.display().to_string())?;
        let path = entry.path();
        if path.is_dir() {
            let skipped = SKIPPED.iter().any(|name| entry.file_name() == *name);
            if below && !skipped {
                collect(&path, below, into)?;
            }
        } else if path.extension().is_some_and(|end| end == "md") {
            into.push(path);
        }
    }
    into.sort();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_walk_of_the_tour_is_checked() {
        let dir = tempfile::tempdir().expect("a directory");
        for place in PLACES {
            fs::create_dir_all(dir.path().join(place)).expect("made");
        }
        let walk = "## A fork, walked\n```text\nlib/gone.rs  fork\n```\n";
        fs::write(dir.path().join(TOUR), walk).expect("written");
        let error = check(dir.path()).expect_err("it is not true").to_string();
        assert_eq!(
            error,
            "docs/tour.md: there is no lib/gone.rs\ndocs/tour.md: it names no file"
        );
    }

    #[test]
    fn links_that_lead_nowhere_are_all_listed_and_no_others() {
        let dir = tempfile::tempdir().expect("a directory");
        for place in PLACES {
            fs::create_dir_all(dir.path().join(place).join("node_modules")).expect("made");
        }
        let page = "# A page, with `code`\n[a](docs/a.md) [b](docs/a.md#what-is-it) [c](#a-page-with-code) [d](https://x/)\n\
                    [e](gone.md) ![f](docs/a.md#gone) [g](#gone)\n`[h](gone)` \n```\n[i](gone)\n```\n    [j](gone)\n";
        fs::write(dir.path().join("README.md"), page).expect("written");
        fs::write(dir.path().join("docs/a.md"), "## What is it?\n").expect("written");
        fs::write(dir.path().join("sdk/node_modules/b.md"), "[x](gone)").expect("written");
        let error = check(dir.path()).expect_err("three are broken").to_string();
        let listed: Vec<_> = error.lines().collect();
        assert_eq!(
            listed,
            [
                "README.md: gone.md: there is no such file",
                "README.md: docs/a.md#gone: there is no such heading",
                "README.md: #gone: there is no such heading",
            ]
        );
    }
}
