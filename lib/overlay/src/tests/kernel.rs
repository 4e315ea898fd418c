//! A kernel to which plans are applied step by step.

use super::*;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Kernel {
    /// The tunnel's entries.
    tunnel: BTreeMap<Member, Ipv4Addr>,
    /// The bridge's; none is the tunnel.
    bridge: BTreeMap<Member, Option<Port>>,
    heard: Vec<Holding>,
    relayed: BTreeSet<(Ipv4Addr, Member)>,
}

impl Kernel {
    fn carry_out(&mut self, plan: TablePlan) {
        for it in plan.unrelayed {
            assert!(self.relayed.remove(&it));
        }
        self.hear(plan.heard);
        for change in plan.changes {
            match change {
                TableChange::Send { member, to, had } => {
                    assert_eq!(self.tunnel.insert(member, to).is_some(), had);
                    self.bridge.insert(member, None);
                }
                TableChange::Port { member, port } => drop(self.bridge.insert(member, Some(port))),
                TableChange::Forget { member, ported } => {
                    assert!(self.tunnel.remove(&member).is_some());
                    if ported {
                        assert!(self.bridge[&member].is_some());
                    } else {
                        assert_eq!(self.bridge.remove(&member), Some(None));
                    }
                }
            }
        }
        for it in plan.unheard {
            let at = self.heard.iter().position(|known| *known == it);
            self.heard.remove(at.expect("heard before"));
        }
        self.hear(plan.narrowed);
        for it in plan.relayed {
            assert!(self.relayed.insert(it));
        }
    }

    fn hear(&mut self, rows: Vec<Holding>) {
        for row in rows {
            assert!(
                !self.heard.iter().any(|known| known.meets(&row)),
                "the kernel refuses {row:?}"
            );
            self.heard.push(row);
        }
    }

    fn sorted(mut self) -> Self {
        self.heard.sort_by_key(|it| (it.tunnel, it.places.start));
        // Entries of ports stay where they do no harm: they go with the port.
        self.bridge.retain(|_, to| to.is_none());
        self
    }
}

fn spans() -> impl Strategy<Value = Span> {
    let hosts = prop::collection::vec((1..5usize, 0..60u16, 0..30u16), 0..6);
    let part = (0..60u16, 2..5usize, any::<prop::sample::Index>());
    let parts = prop::collection::vec(part, 0..4);
    (hosts, sightings(), parts).prop_map(|(hosts, said, parts)| {
        let hosts = hosts.into_iter();
        let hosts = hosts.map(|(of, start, count)| host(of, start..start + count));
        let mut span = span(1, hosts.collect());
        for it in said.into_iter().take(10) {
            span.seen.learn(it);
        }
        for (member, other, kind) in parts {
            let (port, other) = (VmId::random(), site(other));
            let kinds = [
                Part::Expecting { from: other, port },
                Part::Arrived { from: other, port },
                Part::Here { port },
                Part::Passing { to: other, port },
            ];
            span.parts.insert(Member(member), *kind.get(&kinds));
        }
        span
    })
}

proptest! {
    #[test]
    fn what_is_changed_step_by_step_is_what_is_made_at_once(all in prop::collection::vec(spans(), 1..6)) {
        let mut kernel = Kernel::default();
        let mut known = Table::empty(site(1));
        for span in &all {
            let wanted = Table::of(span);
            kernel.carry_out(known.plan(&wanted));
            let mut fresh = Kernel::default();
            fresh.carry_out(Table::empty(site(1)).plan(&wanted));
            prop_assert_eq!(kernel.clone().sorted(), fresh.sorted());
            prop_assert_eq!(wanted.plan(&wanted), TablePlan::default());
            known = wanted;
        }
    }
}
