//! VMs that move as one: all of them there or all here, whichever daemon dies at whichever step.

use forkyard_e2e::{Cluster, eventually, is_sound, steps};
use forkyard_types::{MigrateResponse, VmState, VolumeView};
use std::collections::BTreeSet;

/// Steps that are tried, spread evenly; `FORKYARD_E2E_STEPS=1` tries all.
const SOME: u64 = 5;
const ALL: [&str; 3] = ["a", "b", "c"];

/// The host that has all of them, running; none while that is not clear, or not so.
fn place(cluster: &Cluster) -> Option<usize> {
    let at = |number: usize| -> BTreeSet<String> {
        let own = cluster.host(number).vms().into_iter();
        let own = own.filter(|vm| vm.host.is_none() && vm.state == VmState::Running);
        own.map(|vm| vm.name.to_string()).collect()
    };
    let all: BTreeSet<_> = ALL.map(str::to_owned).into();
    let (here, there) = (at(0), at(1));
    match (
        here == all && there.is_empty(),
        there == all && here.is_empty(),
    ) {
        (true, _) => Some(0),
        (_, true) => Some(1),
        (false, false) => None,
    }
}

fn words(to: &'static str) -> [&'static str; 9] {
    let [a, b, c] = ALL;
    ["migrate", a, b, c, "--to", to, "--together", "-o", "json"]
}

fn home(cluster: &Cluster) {
    eventually("all of them at one host", || place(cluster).is_some());
    if place(cluster) == Some(1) {
        // A daemon that has just heard that they went may still be ending them.
        eventually("them to come home", || {
            cluster.host(1).start(words("h0"), "").wait().code == Some(0)
        });
    }
    assert_eq!(place(cluster), Some(0));
    eventually("the other to know of nothing", || {
        cluster.host(1).vms().iter().all(|vm| vm.host.is_some())
    });
}

#[test]
fn vms_that_move_together_are_all_there_or_all_here_whatever_dies() {
    let mut cluster = Cluster::fake_with_steps(2);
    let here = cluster.host(0);
    here.ok(["run", "tiny", "--name", "a"]);
    here.ok(["run", "tiny", "--name", "b", "--volume", "d"]);
    here.ok(["run", "tiny", "--name", "c"]);
    let several = here.fails(["migrate", "a", "b", "--to", "h1"]);
    assert!(several.contains("--together"), "{several}");
    here.fails(["migrate", "a", "a", "--to", "h1", "--together"]);
    here.fails(["migrate", "a", "nosuch", "--to", "h1", "--together"]);
    assert_eq!(place(&cluster), Some(0));
    for dying in [0, 1] {
        cluster.host(dying).steps().count_only();
        let moved = cluster.host(0).start(words("h1"), "").wait();
        let total = cluster.host(dying).steps().stop();
        let moved: MigrateResponse = serde_json::from_str(&moved.text()).expect("an answer");
        let names: Vec<_> = { moved.together.iter() }
            .map(|it| it.vm.name.to_string())
            .collect();
        assert_eq!(
            (moved.vm.name.as_str(), names),
            ("a", vec!["b".into(), "c".into()])
        );
        // They are one cut: stopped before any goes on.
        let reports = [&moved].into_iter().chain(&moved.together);
        let reports: Vec<_> = reports.map(|it| it.report).collect();
        let landed = || reports.iter().map(|it| it.land_us);
        let between = landed().max().zip(landed().min());
        let between = between.map(|(last, first)| last - first);
        for report in &reports {
            assert!(report.spread_us <= report.stop_us, "{report:?}");
            assert!(report.gap_us >= report.land_us, "{report:?}");
            assert_eq!(Some(report.resume_spread_us), between);
        }
        if dying == 0 {
            // They booted from one image: what they share went once, with the one that went first.
            let ahead = || reports.iter().map(|it| it.pages_ahead.0);
            let first = ahead().max().unwrap_or_default();
            let (all, there) = (
                ahead().sum::<u64>(),
                reports.iter().map(|it| it.pages_there.0).sum::<u64>(),
            );
            assert!(all < first * 5 / 4, "{first} of {all}: {reports:?}");
            assert!(there > first / 2, "{first} and {there}: {reports:?}");
        }
        assert_eq!(place(&cluster), Some(1));
        home(&cluster);
        let mut reached = 0;
        for step in steps::chosen(total, SOME) {
            cluster.host(dying).steps().kill_at(step);
            let outcome = cluster.host(0).start(words("h1"), "").wait();
            cluster.host(dying).steps().stop();
            let call = cluster.host(dying).steps().died_before();
            eprintln!(
                "together, host {dying}: {step} of {total}, {call}: {:?}",
                outcome.code
            );
            reached += u32::from(!call.is_empty());
            cluster.replace_daemon(dying);
            if outcome.code == Some(0) {
                eventually("them to be where they were said to be", || {
                    place(&cluster) == Some(1)
                });
            }
            home(&cluster);
            for host in [0, 1] {
                is_sound(cluster.host(host));
            }
        }
        assert!(reached > 0, "the daemon was never killed");
    }
    // One that cannot go keeps the others.
    cluster.host(1).ok(["run", "tiny", "--name", "c"]);
    cluster.host(0).fails(words("h1"));
    cluster.host(1).ok(["rm", "c"]);
    assert_eq!(place(&cluster), Some(0));
    for host in [0, 1] {
        cluster.host(host).ok(["rm", "--all"]);
        let left: Vec<VolumeView> = cluster.host(host).json(["volume", "ls"]);
        for volume in left {
            cluster
                .host(host)
                .ok(["volume", "rm", volume.name.as_str()]);
        }
    }
    cluster.end();
}
