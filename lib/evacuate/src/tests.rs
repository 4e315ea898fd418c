use super::*;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn guest(name: &str, mib: u64, rank: usize) -> HostedVm {
    HostedVm {
        id: VmId::random(),
        name: name.parse().expect("a name"),
        needs: Room {
            vcpus: 1,
            memory: ByteCount(mib * MIB),
        },
        data: ByteCount(mib * MIB),
        rank,
        state: VmState::Running,
        refused_by: BTreeSet::new(),
        refusal: None,
    }
}

fn target(name: &str, mib: u64) -> TargetHost {
    let free = Some(Room {
        vcpus: 100,
        memory: ByteCount(mib * MIB),
    });
    TargetHost {
        name: name.into(),
        free,
    }
}

fn bounds(within: Option<u64>) -> PlanBounds {
    PlanBounds {
        rate: ByteCount(MIB),
        under_way: ByteCount(0),
        within: within.map(Duration::from_secs),
    }
}

fn names(plan: &EvacuationPlan) -> Vec<&str> {
    plan.moves.iter().map(|it| it.vm.as_str()).collect()
}

#[test]
fn those_of_priority_leave_first_and_of_equals_the_quickest() {
    let guests = vec![
        guest("large", 50, 1),
        guest("small", 5, 1),
        guest("first", 90, 0),
    ];
    let plan = plan(guests, vec![target("b", 1000)], bounds(None));
    assert_eq!(names(&plan), ["first", "small", "large"]);
    let there: Vec<_> = plan.moves.iter().map(|it| it.there.as_secs()).collect();
    assert_eq!(there, [92, 97, 147], "they share the link");
}

#[test]
fn one_that_would_be_late_stays_and_a_smaller_one_goes_in_its_place() {
    let guests = vec![guest("large", 90, 0), guest("small", 5, 1)];
    let plan = plan(guests, vec![target("b", 1000)], bounds(Some(30)));
    assert_eq!(names(&plan), ["small"]);
    assert_eq!(plan.stays[0].why, StayReason::Late(Duration::from_secs(92)));
}

#[test]
fn what_is_under_way_comes_before() {
    let bounds = PlanBounds {
        under_way: ByteCount(25 * MIB),
        ..bounds(Some(30))
    };
    let plan = plan(vec![guest("p", 5, 0)], vec![target("b", 1000)], bounds);
    assert_eq!(plan.stays[0].why, StayReason::Late(Duration::from_secs(32)));
}

#[test]
fn those_that_cannot_move_stay_and_cost_no_other_its_room_or_time() {
    let stopped = HostedVm {
        state: VmState::Stopped,
        ..guest("stopped", 90, 0)
    };
    let guests = vec![stopped, guest("p", 90, 1)];
    let plan = plan(guests, vec![target("b", 90)], bounds(Some(92)));
    assert_eq!(names(&plan), ["p"]);
    let why: Vec<_> = plan.stays.iter().map(|it| it.why.clone()).collect();
    assert_eq!(why, [StayReason::State(VmState::Stopped)]);
}

#[test]
fn one_that_was_refused_goes_elsewhere_or_stays_for_what_was_said() {
    let refused = HostedVm {
        refused_by: ["b".to_owned()].into(),
        refusal: Some("that name is taken".into()),
        ..guest("p", 10, 0)
    };
    let hosts = vec![target("b", 1000), target("c", 100)];
    let there = plan(vec![refused.clone()], hosts, bounds(None));
    assert_eq!(there.moves[0].to, "c");
    let nowhere = plan(vec![refused], vec![target("b", 1000)], bounds(None));
    let why = StayReason::Refused("that name is taken".into());
    assert_eq!(nowhere.stays[0].why, why);
}

#[test]
fn hosts_of_which_nothing_is_known_take_turns() {
    let unknown = |name: &str| TargetHost {
        name: name.into(),
        free: None,
    };
    let guests = ["p", "q", "r"].map(|name| guest(name, 10, 0)).into();
    let plan = plan(guests, vec![unknown("b"), unknown("c")], bounds(None));
    let to: Vec<_> = plan.moves.iter().map(|it| it.to.as_str()).collect();
    assert_eq!(to, ["b", "c", "b"]);
}

proptest! {
    #[test]
    fn every_vm_moves_or_stays_and_no_host_gets_more_than_it_has(
        sizes in prop::collection::vec((1..200_u64, 0..3_usize), 0..20),
        hosts in prop::collection::vec(0..500_u64, 0..4),
        within in prop::option::of(0..300_u64),
    ) {
        let numbered = (0_u32..).zip(&sizes);
        let guests: Vec<_> = numbered
            .map(|(number, (mib, rank))| guest(&format!("v{number}"), *mib, *rank))
            .collect();
        let targets: Vec<_> = (0_u32..)
            .zip(&hosts)
            .map(|(number, mib)| target(&format!("h{number}"), *mib))
            .collect();
        let plan = plan(guests.clone(), targets, bounds(within));
        let mut seen: Vec<_> = plan.moves.iter().map(|it| it.id).collect();
        seen.extend(plan.stays.iter().map(|it| it.id));
        seen.sort_unstable();
        let mut all: Vec<_> = guests.iter().map(|it| it.id).collect();
        all.sort_unstable();
        prop_assert_eq!(seen, all);
        for (number, mib) in (0_u32..).zip(&hosts) {
            let host = format!("h{number}");
            let got: u64 = plan.moves.iter().filter(|it| it.to == host).map(|it| it.data.0).sum();
            prop_assert!(got <= mib * MIB);
        }
        let in_time = |it: &VmMove| within.is_none_or(|within| it.there.as_secs() <= within);
        prop_assert!(plan.moves.iter().all(in_time));
    }
}
