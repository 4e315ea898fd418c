use super::*;
use std::{cell::Cell, sync::mpsc, time::Duration};

/// Builds a file with this content.
fn file_of(work: &Workplace, content: &str) -> Result<PathBuf, BuildError> {
    let path = work.dir().join("built");
    fs::write(&path, content).map_err(io_error("write", &path))?;
    Ok(path)
}

fn left_in(cache: &Cache) -> usize {
    list(&cache.dir.join("tmp")).expect("readable").len()
}

fn cache() -> (tempfile::TempDir, Cache) {
    let dir = tempfile::tempdir().expect("a directory");
    let cache = Cache::new(dir.path().join("cache"));
    (dir, cache)
}

#[test]
fn what_is_there_is_not_built_again() {
    let (_dir, cache) = cache();
    let path = cache.dir.join("things/a");
    let built = Cell::new(0);
    for _ in 0..3 {
        let make = cache.make("a", &path, &mut |_| {}, |work, _| {
            built.set(built.get() + 1);
            file_of(work, "a")
        });
        make.expect("built");
    }
    assert_eq!(built.get(), 1);
    assert_eq!(fs::read_to_string(&path).expect("there"), "a");
    assert_eq!(left_in(&cache), 0);
}

#[test]
fn build_that_fails_leaves_nothing() {
    let (_dir, cache) = cache();
    let path = cache.dir.join("things/a");
    let failed = cache.make("a", &path, &mut |_| {}, |work, _| {
        file_of(work, "half")?;
        Err(BuildError::NotRoot)
    });
    assert!(matches!(failed, Err(BuildError::NotRoot)), "{failed:?}");
    assert!(!path.exists());
    assert_eq!(left_in(&cache), 0);
}

#[test]
fn remains_of_an_interrupted_build_are_removed_by_the_next() {
    let (_dir, cache) = cache();
    let path = cache.dir.join("things/a");
    // A builder that is killed runs no destructor.
    let killed = Workplace::enter(&cache.dir, "a", &mut |_| {}).expect("entered");
    file_of(&killed, "half").expect("written");
    fs::create_dir_all(killed.dir().join("root/deep")).expect("made");
    let lock = killed.lock.try_clone().expect("a copy");
    lock.unlock().expect("unlocked");
    std::mem::forget(killed);
    assert_eq!(left_in(&cache), 1);

    let make = cache.make("a", &path, &mut |_| {}, |work, _| {
        assert_eq!(list(work.dir()).expect("readable").len(), 0);
        file_of(work, "whole")
    });
    make.expect("built");
    assert_eq!(fs::read_to_string(&path).expect("there"), "whole");
    assert_eq!(left_in(&cache), 0);
}

#[test]
fn second_builder_waits_and_finds_what_the_first_built() {
    let (_dir, cache) = cache();
    let path = cache.dir.join("things/a");
    let (waiting, waits) = mpsc::channel();
    std::thread::scope(|scope| {
        let make = cache.make("a", &path, &mut |_| {}, |work, _| {
            let (cache, path) = (cache.clone(), path.clone());
            scope.spawn(move || {
                let mut tell = |event: BuildEvent<'_>| {
                    assert_eq!(event, BuildEvent::Waiting);
                    waiting.send(()).expect("the first still builds");
                };
                cache
                    .make("a", &path, &mut tell, |_, _| panic!("built twice"))
                    .expect("found");
            });
            waits
                .recv_timeout(Duration::from_secs(60))
                .expect("the second waits");
            file_of(work, "a")
        });
        make.expect("built");
    });
}

#[test]
fn orphaned_program_keeps_the_next_builder_out() {
    let (_dir, cache) = cache();
    let work = Workplace::enter(&cache.dir, "a", &mut |_| {}).expect("entered");
    let mut orphan = std::process::Command::new("sleep")
        .arg("60")
        .stdin(work.lock().try_clone().expect("a copy"))
        .spawn()
        .expect("sleep is there");
    drop(work);
    let lock = File::open(cache.dir.join("lock/a")).expect("there");
    assert!(matches!(lock.try_lock(), Err(TryLockError::WouldBlock)));
    orphan.kill().expect("killed");
    orphan.wait().expect("reaped");
    // Free once the orphan is gone, and with it the copies that programs other
    // tests start hold for a moment.
    lock.lock().expect("free");
}

#[test]
fn different_things_are_built_side_by_side() {
    let (_dir, cache) = cache();
    let quiet = &mut |event: BuildEvent<'_>| panic!("{event:?}");
    let _one = Workplace::enter(&cache.dir, "a", quiet).expect("entered");
    let _two = Workplace::enter(&cache.dir, "b", quiet).expect("entered");
}

#[test]
fn images_are_listed_by_name_and_removed() {
    let (_dir, cache) = cache();
    assert_eq!(cache.images().expect("none yet"), []);
    let dir = cache.images_dir();
    fs::create_dir_all(&dir).expect("made");
    let (one, two) = ("1".repeat(32), "2".repeat(32));
    for name in [
        format!("tiny-{one}.raw"),
        format!("my-debian-{two}.raw"),
        "notes.txt".into(),
        format!("tiny-{one}.tmp"),
        "tiny-12.raw".into(),
    ] {
        fs::write(dir.join(name), "1234").expect("written");
    }
    let images = cache.images().expect("listed");
    let names: Vec<&str> = images.iter().map(|i| i.name.as_str()).collect();
    assert_eq!(names, ["my-debian", "tiny"]);
    assert_eq!(images[1].key.to_string(), one);
    assert_eq!(images[1].size, ByteCount(4));

    cache.remove(&images[0]).expect("removed");
    cache.remove(&images[0]).expect("gone already");
    assert_eq!(cache.images().expect("listed"), images[1..]);
}

#[test]
fn newest_link_wins_and_old_kernel_stays() {
    let (_dir, cache) = cache();
    let keep = |name: &str| {
        cache.make("kernel", &cache.current_kernel(), &mut |_| {}, |work, _| {
            let dir = work.dir().join("kernel");
            fs::create_dir(&dir).map_err(io_error("make", &dir))?;
            fs::write(dir.join("release"), name).map_err(io_error("write", &dir))?;
            fs::write(dir.join("modules.order"), "a.ko\n").map_err(io_error("write", &dir))?;
            cache.keep_kernel(
                work,
                &kernel::Fetched {
                    dir,
                    name: name.into(),
                },
            )
        })
    };
    keep("6.1-a").expect("kept");
    keep("6.1-b").expect("there is one already");
    let old = GuestKernel::load(&cache.current_kernel()).expect("loads");
    assert_eq!(old.release.as_deref(), Some("6.1-a"));

    cache.forget_kernel().expect("forgotten");
    keep("6.1-b").expect("kept");
    let new = GuestKernel::load(&cache.current_kernel()).expect("loads");
    assert_eq!(new.release.as_deref(), Some("6.1-b"));
    assert!(
        old.image
            .parent()
            .expect("a directory")
            .join("release")
            .exists()
    );
    assert!(new.modules[0].ends_with("6.1-b/modules/a.ko"), "{new:?}");
}
