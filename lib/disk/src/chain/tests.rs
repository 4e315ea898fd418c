use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn path(number: u8) -> PathBuf {
    format!("/{number}").into()
}

fn paths(numbers: &[u8]) -> Vec<PathBuf> {
    numbers.iter().copied().map(path).collect()
}

/// A VM that forks once: its clone's slice and its own next one lie over the
/// slice it had.
fn forked() -> (Chains, VmId, VmId) {
    let (parent, clone) = (VmId::random(), VmId::random());
    let mut chains = Chains::default();
    chains.add_slice(&path(0), None).expect("new");
    chains.attach(parent, &path(0)).expect("known");
    for over in [1, 2] {
        chains.add_slice(&path(over), Some(&path(0))).expect("new");
    }
    assert_eq!(chains.attach(parent, &path(1)), Ok(vec![]));
    assert_eq!(chains.attach(clone, &path(2)), Ok(vec![]));
    (chains, parent, clone)
}

#[test]
fn a_frozen_slice_lives_until_the_last_over_it_goes() {
    let (mut chains, parent, clone) = forked();
    assert_eq!(chains.users(&path(0)), 2);
    assert_eq!(chains.detach(parent), paths(&[1]));
    assert_eq!(chains.chain_of(clone), paths(&[2, 0]));
    assert_eq!(chains.detach(clone), paths(&[2, 0]));
    assert!(chains.slices.is_empty());
}

#[test]
fn what_was_copied_goes_unless_a_relative_needs_it() {
    let (mut chains, parent, clone) = forked();
    for over in [3, 4, 5] {
        let under = chains.chain_of(parent)[0].to_owned();
        chains.add_slice(&path(over), Some(&under)).expect("new");
        chains.attach(parent, &path(over)).expect("known");
    }
    assert_eq!(chains.shorten(parent, &path(1)), paths(&[4, 3]));
    assert_eq!(chains.chain_of(parent), paths(&[5, 1, 0]));
    assert_eq!(chains.shorten(clone, &path(1)), paths(&[]), "not its own");
    assert_eq!(chains.shorten(parent, &path(5)), paths(&[]), "no lower one");
    // A grandchild over 5 has 1, too.
    let grandchild = VmId::random();
    for over in [6, 7] {
        chains.add_slice(&path(over), Some(&path(5))).expect("new");
    }
    chains.attach(grandchild, &path(6)).expect("known");
    chains.attach(parent, &path(7)).expect("known");
    assert_eq!(chains.shorten(grandchild, &path(0)), paths(&[]));
    assert_eq!(chains.chain_of(grandchild), paths(&[6, 0]));
    assert_eq!(chains.chain_of(parent), paths(&[7, 5, 1, 0]));
    assert_eq!(chains.detach(parent), paths(&[7, 5, 1]));
    assert_eq!(chains.detach(clone), paths(&[2]));
    assert_eq!(chains.detach(grandchild), paths(&[6, 0]));
    assert!(chains.slices.is_empty());
}

#[test]
fn a_slice_not_used_after_all_is_given_back_with_what_it_held() {
    let (mut chains, parent, clone) = forked();
    chains.add_slice(&path(3), Some(&path(2))).expect("new");
    assert_eq!(chains.detach(clone), paths(&[]));
    assert_eq!(chains.abandon(&path(2)), paths(&[]), "in use");
    assert_eq!(chains.abandon(&path(3)), paths(&[3, 2]));
    assert_eq!(chains.detach(parent), paths(&[1, 0]));
}

#[test]
fn the_same_slice_may_be_told_of_twice_but_not_with_another_below() {
    let (mut chains, ..) = forked();
    assert_eq!(chains.add_slice(&path(2), Some(&path(0))), Ok(()));
    let conflict = chains.add_slice(&path(2), Some(&path(1)));
    assert_eq!(conflict, Err(ChainError::Conflict { path: path(2) }));
}

#[test]
fn nothing_lies_over_or_runs_on_a_slice_nobody_knows() {
    let (mut chains, parent, _) = forked();
    let unknown = ChainError::Unknown { path: path(9) };
    let over = chains.add_slice(&path(3), Some(&path(9)));
    assert_eq!(over, Err(unknown.clone()));
    assert_eq!(chains.attach(parent, &path(9)), Err(unknown));
    assert_eq!(chains.chain_of(parent), paths(&[1, 0]), "unchanged");
}

/// The slow truth: every slice with its place, and what is needed found by
/// walking from each VM and from each slice that was never used.
#[derive(Debug, Default)]
struct Model {
    under: BTreeMap<u8, Option<u8>>,
    fresh: BTreeSet<u8>,
    tops: BTreeMap<usize, u8>,
}

impl Model {
    fn chain(&self, top: u8) -> Vec<u8> {
        std::iter::successors(Some(top), |slice| self.under[slice]).collect()
    }

    /// Removes what is reached from nowhere.
    fn sweep(&mut self) -> BTreeSet<u8> {
        let roots = self.tops.values().chain(&self.fresh);
        let needed: BTreeSet<u8> = roots.flat_map(|root| self.chain(*root)).collect();
        let all: BTreeSet<u8> = self.under.keys().copied().collect();
        self.under.retain(|slice, _| needed.contains(slice));
        all.difference(&needed).copied().collect()
    }
}

#[derive(Clone, Debug)]
enum Op {
    Add(u8, Option<u8>),
    Attach(usize, u8),
    Detach(usize),
    Abandon(u8),
    Shorten(usize, u8),
}

fn op() -> impl Strategy<Value = Op> {
    let slice = 0..12u8;
    let vm = 0..4usize;
    prop_oneof![
        3 => (slice.clone(), proptest::option::of(slice.clone())).prop_map(|(s, u)| Op::Add(s, u)),
        3 => (vm.clone(), slice.clone()).prop_map(|(v, s)| Op::Attach(v, s)),
        1 => vm.clone().prop_map(Op::Detach),
        1 => slice.clone().prop_map(Op::Abandon),
        1 => (vm, slice).prop_map(|(v, s)| Op::Shorten(v, s)),
    ]
}

fn apply(model: &mut Model, op: &Op) -> Result<BTreeSet<u8>, ()> {
    match *op {
        Op::Add(slice, under) => {
            if let Some(known) = model.under.get(&slice) {
                return if *known == under {
                    Ok(BTreeSet::new())
                } else {
                    Err(())
                };
            }
            if let Some(under) = under {
                if !model.under.contains_key(&under) {
                    return Err(());
                }
                model.fresh.remove(&under);
            }
            model.under.insert(slice, under);
            model.fresh.insert(slice);
            Ok(BTreeSet::new())
        }
        Op::Attach(vm, slice) => {
            if !model.under.contains_key(&slice) {
                return Err(());
            }
            model.fresh.remove(&slice);
            model.tops.insert(vm, slice);
            Ok(model.sweep())
        }
        Op::Detach(vm) => {
            model.tops.remove(&vm);
            Ok(model.sweep())
        }
        Op::Abandon(slice) => {
            model.fresh.remove(&slice);
            Ok(model.sweep())
        }
        Op::Shorten(vm, onto) => {
            if let Some(top) = model.tops.get(&vm).copied()
                && model.chain(top).iter().skip(1).any(|slice| *slice == onto)
            {
                model.under.insert(top, Some(onto));
            }
            Ok(model.sweep())
        }
    }
}

proptest! {
    #[test]
    fn exactly_what_no_vm_reaches_is_collected(ops in proptest::collection::vec(op(), 1..80)) {
        let vms: Vec<VmId> = (0..4).map(|_| VmId::random()).collect();
        let (mut chains, mut model) = (Chains::default(), Model::default());
        for op in &ops {
            let collected = match *op {
                Op::Add(slice, under) => {
                    let under = under.map(path);
                    chains.add_slice(&path(slice), under.as_deref()).map(|()| vec![])
                }
                Op::Attach(vm, slice) => chains.attach(vms[vm], &path(slice)),
                Op::Detach(vm) => Ok(chains.detach(vms[vm])),
                Op::Abandon(slice) => Ok(chains.abandon(&path(slice))),
                Op::Shorten(vm, onto) => Ok(chains.shorten(vms[vm], &path(onto))),
            };
            let expected = apply(&mut model, op);
            prop_assert_eq!(collected.is_ok(), expected.is_ok(), "{:?}", op);
            if let (Ok(collected), Ok(expected)) = (collected, expected) {
                let collected: BTreeSet<PathBuf> = collected.into_iter().collect();
                prop_assert_eq!(collected, expected.into_iter().map(path).collect(), "{:?}", op);
            }
            for (vm, top) in &model.tops {
                prop_assert_eq!(chains.chain_of(vms[*vm]), paths(&model.chain(*top)));
            }
            for slice in 0..12 {
                let users = model.tops.values().filter(|top| model.chain(**top).contains(&slice));
                prop_assert_eq!(chains.users(&path(slice)), users.count());
            }
        }
    }
}
