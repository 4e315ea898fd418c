use super::{kept::Left, *};
use crate::{quota::Quotas, to_text};
use forkyard_types::FamilyId;
use proptest::prelude::*;
use std::net::Ipv4Addr;

fn granted(n: u16) -> (Tickets, TicketId, VmId) {
    let shares = lay_out(n, 2, TicketKind::Flat);
    granted_shares(&shares)
}

fn granted_shares(shares: &[Share]) -> (Tickets, TicketId, VmId) {
    let (id, owner) = (TicketId::random(), VmId::random());
    let mut next = 1;
    let promises = shares.iter().map(|share| {
        let id = next;
        next += u16::from(share.processes);
        Promise {
            clone: TicketClone {
                id,
                vcpus: share.vcpus,
                processes: share.processes,
                ip: Ipv4Addr::LOCALHOST,
            },
            member: Member(id),
            host: None,
        }
    });
    let promises: Vec<_> = promises.collect();
    let places = Quotas::default().take(FamilyId::random(), 1, None, || 0);
    let grant = Grant {
        promises,
        places: Some(places.expect("no limit")),
        room: None,
    };
    let mut tickets = Tickets::default();
    tickets.grant(id, owner, (RequestId::random(), TicketKind::Flat), grant);
    (tickets, id, owner)
}

fn begin(tickets: &mut Tickets, id: TicketId, caller: VmId) -> Result<usize, Denied> {
    match tickets.begin(id, caller, RequestId::random())? {
        Begun::Now(grant) => Ok(grant.promises.len()),
        Begun::Before(_) => panic!("another request"),
    }
}

fn kill(tickets: &mut Tickets, id: TicketId, caller: VmId) -> Result<Vec<VmId>, Denied> {
    tickets.kill(id, caller).map(|killed| killed.alive)
}

#[test]
fn a_ticket_that_no_process_holds_has_its_time_until_it_is_cloned_with() {
    let (mut tickets, id, owner) = granted(2);
    assert_eq!(tickets.until(id), None, "its process holds it");
    tickets.limit(id, 100);
    tickets.limit(id, 200);
    assert_eq!(
        tickets.until(id),
        Some(100),
        "asked for again, granted once"
    );
    let recorded = tickets.changes().into_iter();
    let recorded = recorded.filter_map(|(id, entry)| Some((id, entry?)));
    let mut next = Tickets::load(recorded.collect());
    assert_eq!(next.until(id), Some(100), "a daemon later");
    assert_eq!(begin(&mut next, id, owner), Ok(2));
    assert_eq!(next.until(id), None);
    assert!(
        next.granted_here(id)
            .is_ok_and(|(view, of)| view.id == id && of == owner)
    );
    let unknown = TicketId::random();
    assert_eq!(
        next.granted_here(unknown).err(),
        Some(Denied::Unknown(unknown))
    );
}

#[test]
fn a_ticket_is_prepared_for_until_it_is_cloned_with_or_killed_and_holds_its_places_so_long() {
    let (mut tickets, id, owner) = granted(3);
    assert_eq!(tickets.promised_to(owner), 3);
    assert_eq!(tickets.promised_to(VmId::random()), 0);
    let killed = tickets.kill(id, owner).expect("its own");
    assert_eq!(tickets.promised_to(owner), 0);
    let held = killed.unused.and_then(|grant| grant.places);
    assert!(held.is_some(), "until what was prepared is gone");
    let again = tickets.kill(id, owner).expect("not spent yet");
    assert!(again.unused.is_none(), "given back once");

    let (mut tickets, id, owner) = granted(3);
    assert!(begin(&mut tickets, id, owner).is_ok());
    assert_eq!(tickets.promised_to(owner), 0);
}

#[test]
fn processes_fill_the_vcpus_of_as_few_clones_as_will_do() {
    let share = |processes, vcpus| Share { processes, vcpus };
    let hierarchical = |count, vcpus| lay_out(count, vcpus, TicketKind::Hierarchical);
    assert_eq!(hierarchical(8, 4), [share(4, 4); 2]);
    assert_eq!(hierarchical(5, 4), [share(4, 4), share(1, 1)]);
    assert_eq!(hierarchical(3, 4), [share(3, 3)]);
    assert_eq!(hierarchical(3, 1), [share(1, 1); 3]);
    assert_eq!(hierarchical(0, 4), []);
    assert_eq!(lay_out(2, 4, TicketKind::Flat), [share(1, 4); 2]);
}

#[test]
fn a_join_tells_of_every_process_and_believes_a_clone_of_its_own_alone() {
    let shares = lay_out(5, 2, TicketKind::Hierarchical);
    let (mut tickets, id, owner) = granted_shares(&shares);
    assert_eq!(begin(&mut tickets, id, owner), Ok(3));
    let vms = [1, 3, 5].map(|first| {
        let vm = VmId::random();
        assert!(tickets.born(id, first, vm));
        vm
    });
    let end = |id, status| CloneEnd { id, status };
    tickets.told(vms[0], &[end(2, Some(7)), end(1, Some(9)), end(4, Some(9))]);
    for vm in vms {
        tickets.ended(vm, Some(0));
    }
    let want = [
        end(1, Some(0)),
        end(2, Some(7)),
        end(3, Some(0)),
        end(4, None),
        end(5, Some(0)),
    ];
    assert_eq!(tickets.join(id, owner), Ok(Some(want.to_vec())));
}

#[test]
fn what_a_vm_says_of_clones_that_are_not_its_own_changes_nothing() {
    let shares = lay_out(4, 2, TicketKind::Hierarchical);
    let (mut tickets, id, owner) = granted_shares(&shares);
    assert_eq!(begin(&mut tickets, id, owner), Ok(2));
    let [first, second, stranger] = [(); 3].map(|()| VmId::random());
    assert!(tickets.born(id, 1, first) && tickets.born(id, 3, second));
    let entry = |tickets: &Tickets| to_text(&tickets.entries[&id]).expect("text");
    let before = entry(&tickets);
    let lies: Vec<_> = (0..=9)
        .map(|id| CloneEnd {
            id,
            status: Some(9),
        })
        .collect();
    // The owner is no clone of its own, and the stranger none of any.
    for liar in [owner, stranger] {
        tickets.told(liar, &lies);
        tickets.ended(liar, Some(9));
        assert_eq!(entry(&tickets), before);
    }
    // One that is may speak of its own second process, and of no other.
    tickets.told(first, &lies);
    tickets.ended(first, Some(1));
    assert_eq!(tickets.join(id, owner), Ok(None), "the second lives");
    tickets.told(first, &lies);
    tickets.ended(second, Some(2));
    let ends = tickets.join(id, owner).expect("its own").expect("ended");
    let statuses: Vec<_> = ends.iter().map(|end| (end.id, end.status)).collect();
    let want = [(1, Some(1)), (2, Some(9)), (3, Some(2)), (4, None)];
    assert_eq!(statuses, want);
}

#[test]
fn only_its_owner_can_use_a_ticket() {
    let (mut tickets, id, owner) = granted(2);
    let thief = VmId::random();
    assert_eq!(begin(&mut tickets, id, thief), Err(Denied::Unknown(id)));
    assert_eq!(kill(&mut tickets, id, thief), Err(Denied::Unknown(id)));
    assert_eq!(begin(&mut tickets, id, owner), Ok(2));
    assert_eq!(tickets.join(id, thief), Err(Denied::Unknown(id)));
}

#[test]
fn a_ticket_clones_once() {
    let (mut tickets, id, owner) = granted(1);
    assert!(begin(&mut tickets, id, owner).is_ok());
    assert_eq!(
        begin(&mut tickets, id, owner),
        Err(Denied::AlreadyCloned(id))
    );
    assert!(tickets.born(id, 1, VmId::random()));
    assert_eq!(
        begin(&mut tickets, id, owner),
        Err(Denied::AlreadyCloned(id))
    );
}

#[test]
fn a_join_before_the_clone_is_refused() {
    let (mut tickets, id, owner) = granted(1);
    assert_eq!(tickets.join(id, owner), Err(Denied::NotCloned(id)));
}

#[test]
fn a_clone_of_a_ticket_killed_meanwhile_must_not_run() {
    let (mut tickets, id, owner) = granted(1);
    assert!(begin(&mut tickets, id, owner).is_ok());
    assert_eq!(kill(&mut tickets, id, owner), Ok(vec![]));
    assert!(!tickets.born(id, 1, VmId::random()));
}

#[test]
fn a_clone_never_promised_must_not_run() {
    let (mut tickets, id, owner) = granted(1);
    assert!(!tickets.born(id, 1, VmId::random()), "not cloned with yet");
    assert!(begin(&mut tickets, id, owner).is_ok());
    assert!(!tickets.born(id, 2, VmId::random()), "of another number");
    assert!(tickets.born(id, 1, VmId::random()));
    assert!(!tickets.born(id, 1, VmId::random()), "twice");
}

#[test]
fn kill_names_the_living_only() {
    let (mut tickets, id, owner) = granted(3);
    let vms = [VmId::random(), VmId::random()];
    assert!(begin(&mut tickets, id, owner).is_ok());
    assert!(tickets.born(id, 1, vms[0]) && tickets.born(id, 2, vms[1]));
    tickets.unborn(id, 3);
    tickets.ended(vms[0], Some(0));
    assert_eq!(kill(&mut tickets, id, owner), Ok(vec![vms[1]]));
    assert_eq!(tickets.join(id, owner), Err(Denied::Unknown(id)));
}

#[test]
fn a_request_made_again_of_the_next_daemon_has_the_outcome_of_the_first() {
    let (mut tickets, id, owner) = granted(3);
    let request = tickets.entries[&id].request;
    let mut next = taken_over(&mut tickets, &[owner]);
    let again = next.granted(owner, request).expect("the same ticket");
    assert_eq!((again.id, again.clones.len()), (id, 3));
    assert_eq!(next.granted(VmId::random(), request), None, "of another VM");

    let clone = RequestId::random();
    assert!(matches!(next.begin(id, owner, clone), Ok(Begun::Now(_))));
    let [made, erased] = [VmId::random(), VmId::random()];
    assert!(next.born(id, 1, made) && next.born(id, 2, erased));
    // Here the daemon dies: one clone was whole, one half made, one not begun.
    let mut last = taken_over(&mut next, &[owner, made]);
    match last.begin(id, owner, clone) {
        Ok(Begun::Before(unmade)) => assert_eq!(unmade, [2, 3]),
        other => panic!("{other:?}"),
    }
    assert_eq!(
        begin(&mut last, id, owner),
        Err(Denied::AlreadyCloned(id)),
        "another request"
    );
    assert!(last.has(made));
    last.ended(made, Some(4));
    let ends = last.join(id, owner).expect("its own").expect("all ended");
    let statuses: Vec<_> = ends.iter().map(|end| end.status).collect();
    assert_eq!(statuses, [Some(4), None, None]);
    assert_eq!(last.changes(), [(id, None)], "spent");
}

#[test]
fn what_was_to_be_killed_is_killed_by_the_next_daemon() {
    let (mut tickets, id, owner) = granted(1);
    assert!(begin(&mut tickets, id, owner).is_ok());
    let vm = VmId::random();
    assert!(tickets.born(id, 1, vm));
    tickets.kill(id, owner).expect("its own");
    let mut next = Tickets::load(recorded(&mut tickets));
    assert_eq!(next.settle(|_| false), [Left::Kill(id, vec![vm])]);
    next.spend(id);
    assert_eq!(next.join(id, owner), Err(Denied::Unknown(id)));
}

/// Lists the content of the records, which all changed since the start.
fn recorded(tickets: &mut Tickets) -> Vec<(TicketId, String)> {
    tickets.changed.extend(tickets.entries.keys());
    let changes = tickets.changes().into_iter();
    changes
        .filter_map(|(id, entry)| Some((id, entry?)))
        .collect()
}

/// The tickets as the next daemon has them, which finds these VMs.
fn taken_over(tickets: &mut Tickets, vms: &[VmId]) -> Tickets {
    let mut next = Tickets::load(recorded(tickets));
    next.settle(|vm| vms.contains(&vm));
    next
}

#[test]
fn tickets_go_with_their_owner() {
    let (mut tickets, id, owner) = granted(1);
    assert_eq!(tickets.forget(owner), []);
    assert_eq!(begin(&mut tickets, id, owner), Err(Denied::Unknown(id)));
}

#[test]
fn clones_go_with_the_process_that_held_their_ticket_and_its_vm() {
    let alive = |detached: bool| {
        let (mut tickets, id, owner) = granted(2);
        if detached {
            tickets.limit(id, 100);
        }
        begin(&mut tickets, id, owner).expect("granted");
        let vm = VmId::random();
        assert!(tickets.born(id, 1, vm));
        (tickets, id, owner, vm)
    };
    let (mut tickets, id, owner, vm) = alive(false);
    assert_eq!(tickets.forget(owner), [(id, vec![vm])]);
    assert!(!tickets.born(id, 2, VmId::random()), "it comes too late");
    assert_eq!(tickets.forget(owner), [], "they are being ended");
    // By the next daemon, if this one dies before.
    let mut next = Tickets::load(recorded(&mut tickets));
    assert_eq!(next.settle(|_| false), [Left::Kill(id, vec![vm])]);
    // Or that finds no such VM any more.
    let (mut tickets, id, _, vm) = alive(false);
    let mut next = Tickets::load(recorded(&mut tickets));
    assert_eq!(next.settle(|it| it == vm), [Left::Kill(id, vec![vm])]);

    let (mut tickets, id, owner, _) = alive(true);
    assert_eq!(tickets.forget(owner), [], "they are VMs like any other");
    assert_eq!(tickets.join(id, owner), Err(Denied::Unknown(id)));
}

proptest! {
    #[test]
    fn join_returns_once_every_clone_has_ended_with_the_status_each_gave(
        // None: the clone could not be made. Some(status): it ended so.
        fates in prop::collection::vec(any::<Option<Option<u8>>>(), 1..8),
        turn in any::<prop::sample::Index>(),
    ) {
        let count = u16::try_from(fates.len()).expect("few");
        let (mut tickets, id, owner) = granted(count);
        prop_assert_eq!(begin(&mut tickets, id, owner), Ok(fates.len()));
        let mut events: Vec<_> = (1u16..).zip(&fates).map(|(n, fate)| (n, *fate, VmId::random())).collect();
        events.rotate_left(turn.index(fates.len()));
        for (number, fate, vm) in events {
            prop_assert_eq!(tickets.join(id, owner), Ok(None));
            match fate {
                None => tickets.unborn(id, number),
                Some(status) => {
                    prop_assert!(tickets.born(id, number, vm));
                    prop_assert_eq!(tickets.join(id, owner), Ok(None));
                    tickets.ended(vm, status);
                    tickets.ended(vm, Some(99));
                }
            }
        }
        let want: Vec<_> =
            (1..).zip(&fates).map(|(id, fate)| CloneEnd { id, status: fate.flatten() }).collect();
        prop_assert_eq!(tickets.join(id, owner), Ok(Some(want)));
        prop_assert_eq!(tickets.join(id, owner), Err(Denied::Unknown(id)));
    }
}
