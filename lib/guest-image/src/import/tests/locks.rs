//! Locks and leftovers of imports.

use super::*;
use std::{sync::mpsc, time::Duration};

#[test]
fn what_a_killed_import_left_is_swept_away_and_one_under_way_is_not() {
    let (_dir, cache) = cache();
    let killed = Workplace::enter(&cache.dir, "import-a", &mut |_| {}).expect("entered");
    fs::write(killed.dir().join("incoming"), "half").expect("written");
    killed.lock().unlock().expect("unlocked");
    std::mem::forget(killed);
    let running = Workplace::enter(&cache.dir, "import-b", &mut |_| {}).expect("entered");
    let removed = cache.imported_dir().join(format!("c-{}", "1".repeat(32)));
    fs::create_dir_all(&removed).expect("made");
    fs::write(removed.join("disk.pages"), "").expect("written");
    cache.sweep().expect("swept");
    assert!(running.dir().exists() && !removed.exists());
    assert_eq!(list(&cache.dir.join("tmp")).expect("listed").len(), 1);
    drop(running);
    // Programs that other tests start hold copies of it for a moment.
    for _ in 0..1000 {
        cache.sweep().expect("swept");
        if list(&cache.dir.join("lock")).expect("listed").is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("a lock is left");
}

#[test]
fn a_lock_that_was_removed_meanwhile_is_made_anew_and_keeps_others_out() {
    let (_dir, cache) = cache();
    let first = Workplace::enter(&cache.dir, "import-a", &mut |_| {}).expect("entered");
    let (waiting, waits) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let second = Workplace::enter(&cache.dir, "import-a", &mut |_| {
                waiting.send(()).expect("the first is there");
            });
            let second = second.expect("entered");
            let third = File::open(cache.dir.join("lock/import-a")).expect("there");
            third.try_lock().expect_err("it is held");
            drop(second);
        });
        waits.recv_timeout(Duration::from_secs(60)).expect("waits");
        fs::remove_file(cache.dir.join("lock/import-a")).expect("removed");
        drop(first);
    });
}
