//! Command lines that are understood, and those that are refused.

use super::*;
use clap::CommandFactory;
use forkyard_types::WayOut;

mod documented;

#[test]
fn the_words_do_not_contradict_each_other() {
    Args::command().debug_assert();
}

#[test]
fn the_first_fork_of_the_readme_is_understood() {
    for line in [
        "forkyard run tiny --name p",
        "forkyard fork p --count 8 -o json",
        "forkyard exec p-3 -- hostname",
        "forkyard rm --all",
        "forkyard image import web disk.img --partition 2",
        "forkyard image export web web.raw --format raw",
        "forkyard image pull docker.io/library/python:3.12-slim --name py --start",
        "forkyard image build debian",
        "forkyard image build -f a/Dockerfile -t web a --start",
        "forkyard run tiny --spread",
        "forkyard fork p -n 4 --to a,b --settle --settled",
        "forkyard node ls -o json",
        "forkyard node invite --expires 1h",
        "forkyard node drain a b",
        "forkyard node rm a --force",
        "forkyard node quota ci --vcpus 64",
        "forkyard friendly model --starts 1,2 --gamma 0.2 --out plots -o json",
        "forkyard friendly try --capacity 40 --periods 10",
        "forkyard friendly set web --law quick monitor.threshold=2 --group image",
        "forkyard friendly set web --off",
        "forkyard friendly show web -o json",
        "forkyard run tiny --net bridge --ip 192.0.2.7",
        "forkyard substrate activate base --count 4 --net routed --ip 203.0.113.5-203.0.113.8",
        "forkyard publish p-3 203.0.113.7/routed 8080:80",
        "forkyard unpublish p-3 203.0.113.7 5353/udp",
        "forkyard run tiny --net nat --allow 192.0.2.0/24:443 --rate 10mbit -p 8080:80",
    ] {
        Args::try_parse_from(line.split(' ')).expect(line);
    }
}

#[test]
fn there_is_no_way_out_unless_one_is_asked_for() {
    let out = |words: &str| {
        let words = format!("forkyard run tiny {words}");
        let args = Args::try_parse_from(words.split_whitespace()).expect("understood");
        let Command::Run(run) = args.command else {
            panic!("{words}");
        };
        run.network.policy(None).expect("a policy").out
    };
    assert_eq!(out(""), WayOut::None);
    assert_eq!(out("--publish 80:80 --rate 1mbit"), WayOut::None);
    assert_eq!(out("--net nat"), WayOut::Nat);
    assert_eq!(out("--allow 192.0.2.7"), WayOut::Nat);
}

/// The policy that these words of `run` ask for, or none if they make no sense.
fn policy(words: &str) -> Option<forkyard_types::NetworkPolicy> {
    let words = format!("forkyard run tiny {words}");
    let args = Args::try_parse_from(words.split_whitespace()).ok()?;
    let Command::Run(run) = args.command else {
        return None;
    };
    run.network.policy(run.join.as_deref()).ok()
}

#[test]
fn addresses_are_given_by_a_way_that_they_get_here() {
    let leads = |words: &str| -> Option<Vec<String>> {
        let leads = policy(words)?.publish;
        Some(leads.iter().map(ToString::to_string).collect())
    };
    let of = |all: &[&str]| Some(all.iter().map(ToString::to_string).collect());
    let (one, two) = ("203.0.113.254/routed", "203.0.113.255/routed");
    let range = "--net routed --ip 203.0.113.254-203.0.114.0";
    assert_eq!(leads(range), of(&[one, two, "203.0.114.0/routed"]));
    let ports = "--net bridge --ip 192.0.2.7 -p 80:80 --ip 192.0.2.9";
    let each = ["80:80/tcp", "192.0.2.7/bridge", "192.0.2.9/bridge"];
    assert_eq!(leads(ports), of(&each));
    assert_eq!(
        policy("--net bridge --ip 192.0.2.7").map(|it| it.out),
        Some(WayOut::Nat)
    );
    // One that joins asks for no way out of its own.
    let joins = policy("--join p --net bridge --ip 192.0.2.7").expect("understood");
    assert_eq!((joins.out, joins.publish.len()), (WayOut::None, 1));
    for wrong in [
        "--ip 192.0.2.7",
        "--net nat --ip 192.0.2.7",
        "--net none --ip 192.0.2.7",
        "--net bridge",
        "--net routed --ip 127.0.0.1",
        "--net routed --ip 203.0.113.9-203.0.113.1",
        "--net routed --ip 203.0.113.9-203.0.120.1",
        "--net routed --ip 224.0.0.1",
    ] {
        assert_eq!(policy(wrong), None, "{wrong}");
    }
}

#[test]
fn rm_of_nothing_in_particular_is_refused() {
    assert!(Args::try_parse_from(["forkyard", "rm"]).is_err());
    assert!(Args::try_parse_from(["forkyard", "rm", "--all", "p"]).is_err());
}
