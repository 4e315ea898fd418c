//! A member moves between hosts while all others talk to it.

use crate::{
    guest::{Guest, PATIENCE, SILENCE, datagram},
    stations::{Stations, first_place, span},
};
use forkyard_network::Span;
use forkyard_overlay::{Event, Part, PlaceGeneration, PlaceNews, Whereabout};
use forkyard_types::{FamilyId, Member};
use std::{collections::BTreeSet, net::SocketAddrV4};

const FAMILY: u16 = 7;
const MOVES: Member = Member(5);
const HOSTS: [usize; 3] = [0, 1, 2];

/// Three hosts, and the knowledge of each.
struct World {
    hosts: Stations,
    family: FamilyId,
    spans: [Span; 3],
}

impl World {
    fn new() -> Self {
        let hosts = Stations::new(3);
        let family = hosts.family(FAMILY, &HOSTS);
        let spans = HOSTS.map(|host| span(host, &HOSTS));
        Self {
            hosts,
            family,
            spans,
        }
    }

    fn sees(&mut self, host: usize, generation: u32, at: Whereabout) {
        let generation = PlaceGeneration(generation);
        let said = PlaceNews {
            member: MOVES,
            generation,
            at,
        };
        self.spans[host].seen.learn(said);
        self.tell(host);
    }

    fn step(&mut self, host: usize, event: Event) {
        let parts = &mut self.spans[host].parts;
        let part = Part::step(parts.remove(&MOVES), event);
        parts.extend(part.map(|part| (MOVES, part)));
        self.tell(host);
    }

    fn tell(&self, host: usize) {
        let span = self.spans[host].clone();
        self.hosts.stretch(host, self.family, FAMILY, span);
    }
}

/// Sends a number to another, from a fixed port.
fn say(from: &Guest, to: &Guest, number: u8) {
    let ports = [from, to].map(|it| SocketAddrV4::new(it.address.ip, 9));
    let (to, own) = (to.address.mac, from.address.mac);
    from.send(&datagram(to, own, ports[0], ports[1], &[number]));
}

/// Numbers that have come to a guest, each with its sender's place, until so many are
/// there; and those that come once more.
fn heard(guest: &Guest, count: usize) -> Vec<(u16, u8)> {
    let mut all = Vec::new();
    let mut note = |frame: &[u8]| {
        // A bridge that has not heard of a place yet asks all of its ports.
        let is_own = frame.get(..6) == Some(&guest.address.mac.0);
        if let (true, Some([0x08, 0, 0x45]), Some([high, low]), Some(number)) =
            (is_own, frame.get(12..15), frame.get(10..12), frame.get(42))
        {
            all.push((u16::from_be_bytes([*high, *low]), *number));
        }
        all.len() == count
    };
    if count > 0 {
        guest.waits(PATIENCE, &mut note);
    }
    // Nothing comes twice.
    guest.waits(SILENCE, |frame| {
        note(frame);
        false
    });
    all
}

#[test]
fn every_frame_for_a_member_that_moves_comes_once_and_none_to_where_it_was() {
    let mut world = World::new();
    let (from, to) = (world.spans[0].tunnel, world.spans[1].tunnel);
    let family = world.family;
    let old = world.hosts.guest(0, family, FAMILY, MOVES.0);
    let others = HOSTS.map(|host| world.hosts.guest(host, family, FAMILY, first_place(host)));
    let all = |number: u8| -> BTreeSet<(u16, u8)> {
        let from = HOSTS.into_iter().map(|it| (first_place(it), number));
        from.collect()
    };
    let speak = |number| others.iter().for_each(|other| say(other, &old, number));
    speak(1);
    assert_eq!(heard(&old, 3).into_iter().collect::<BTreeSet<_>>(), all(1));

    // It is about to move, and all have heard of it. Those beside its future port wait there.
    let vm = old.vm;
    let new = world.hosts.on(1, async move |networks| {
        networks.park(family, vm).await.expect("parked");
        networks.create_tap(vm).expect("a tap")
    });
    let new = Guest::of(vm, family, old.address, new);
    world.sees(2, 1, Whereabout::Moving { from, to });
    world.sees(0, 1, Whereabout::Moving { from, to });
    world.spans[1].seen = world.spans[0].seen.clone();
    world.step(1, Event::Expected { from, port: vm });
    speak(2);
    assert_eq!(heard(&old, 2), heard_of(&[0, 2], 2));
    assert_eq!(heard(&new, 0), [], "it waits");

    // It stands still: all that is sent waits at its future port.
    world.step(0, Event::Stopped { to, port: vm });
    speak(3);
    assert_eq!(heard(&old, 0), [], "nothing comes to where it was");
    say(&new, &others[2], 4);
    assert_eq!(heard(&others[2], 0), [], "its port is shut");
    assert_eq!(heard(&new, 0), []);

    // It has announced itself. The third host has not heard of that, and believes it all the same.
    let address = old.address;
    world.hosts.on(1, async move |networks| {
        networks.admit(&[(vm, address)]).await.expect("admitted");
        networks.open_port(family, vm).await.expect("open");
    });
    world.sees(1, 2, Whereabout::At(to));
    world.step(1, Event::Announced);
    let mut waited = all(3);
    waited.extend(heard_of(&[1], 2));
    let got = heard(&new, 4);
    assert_eq!(got.len(), 4, "each once");
    assert_eq!(got.into_iter().collect::<BTreeSet<_>>(), waited);
    say(&new, &others[2], 5);
    assert_eq!(heard(&others[2], 1), [(5, 5)]);
    speak(6);
    assert_eq!(heard(&new, 3).into_iter().collect::<BTreeSet<_>>(), all(6));

    // All have heard of it: nothing goes by its former host, which is not believed any more.
    world.sees(0, 2, Whereabout::At(to));
    world.step(0, Event::Left);
    world.sees(2, 2, Whereabout::At(to));
    world.sees(2, 1, Whereabout::Moving { from, to });
    world.step(1, Event::Settled);
    speak(7);
    assert_eq!(heard(&new, 3).into_iter().collect::<BTreeSet<_>>(), all(7));
    say(&old, &others[2], 8);
    say(&new, &others[0], 9);
    assert_eq!(
        heard(&others[2], 0),
        [],
        "its former host speaks for it no more"
    );
    assert_eq!(heard(&others[0], 1), [(5, 9)]);
}

/// Numbers sent by the members at those hosts, in their order.
fn heard_of(which: &[usize], number: u8) -> Vec<(u16, u8)> {
    let from = which.iter().map(|it| first_place(*it));
    from.map(|from| (from, number)).collect()
}

#[test]
fn a_member_that_stays_after_all_gets_its_frames_again_and_goes_round_nowhere() {
    let mut world = World::new();
    let (from, to) = (world.spans[0].tunnel, world.spans[1].tunnel);
    let family = world.family;
    let old = world.hosts.guest(0, family, FAMILY, MOVES.0);
    let others = HOSTS.map(|host| world.hosts.guest(host, family, FAMILY, first_place(host)));
    // The hosts' kernels know each other from here on.
    others.iter().for_each(|other| say(other, &old, 0));
    assert_eq!(heard(&old, 3).len(), 3);
    say(&others[0], &others[1], 0);
    assert_eq!(heard(&others[1], 1).len(), 1);
    let vm = old.vm;
    let new = world.hosts.on(1, async move |networks| {
        networks.park(family, vm).await.expect("parked");
        networks.create_tap(vm).expect("a tap")
    });
    let new = Guest::of(vm, family, old.address, new);
    world.step(1, Event::Expected { from, port: vm });
    world.step(0, Event::Stopped { to, port: vm });
    say(&others[2], &old, 1);
    assert_eq!(heard(&old, 0), []);
    // Given up there first, so that each host takes the other for the one that has it.
    world.step(1, Event::GivenUp);
    say(&others[1], &old, 2);
    say(&others[2], &old, 2);
    assert_eq!(heard(&new, 0), []);
    world.hosts.on(1, async move |networks| networks.unpark(vm));
    world.step(0, Event::Stayed);
    drop(new);
    others.iter().for_each(|other| say(other, &old, 3));
    let got: BTreeSet<_> = heard(&old, 3).into_iter().collect();
    let wanted = heard_of(&HOSTS, 3).into_iter().collect();
    assert_eq!(got, wanted, "and nothing that was on its way round");
}
