use super::*;
use forkyard_types::TicketId;
use proptest::prelude::*;

const GIB: u64 = 1 << 30;

fn name(text: &str) -> NodeName {
    text.parse().expect("a name")
}

fn offer(vcpus: u32, taken: u32) -> Offer {
    Offer {
        offers: Room {
            vcpus,
            memory: ByteCount(64 * GIB),
        },
        taken: Room {
            vcpus: taken,
            memory: ByteCount(0),
        },
        vms: 0,
        users: BTreeMap::new(),
    }
}

fn picture(nodes: &[(&str, u32, u32)]) -> Picture {
    let offers = nodes
        .iter()
        .map(|(node, vcpus, taken)| (name(node), offer(*vcpus, *taken)));
    Picture {
        offers: offers.collect(),
        ..Picture::default()
    }
}

fn wish(count: u16, layout: CloneLayout) -> Wish {
    Wish {
        user: None,
        count,
        need: CloneNeed {
            vcpus: 1,
            memory: ByteCount(GIB),
        },
        layout,
        near: None,
        only: None,
    }
}

fn dealt(places: Result<Vec<NodeClones>, PlacementDenied>) -> Vec<(String, u16)> {
    let places = places.expect("granted");
    let pair = |place: NodeClones| (place.node.to_string(), place.clones);
    places.into_iter().map(pair).collect()
}

#[test]
fn packed_clones_fill_the_nearest_node_and_then_the_fullest() {
    let picture = picture(&[("a", 8, 0), ("b", 8, 5), ("c", 8, 2)]);
    let packed = picture.lay_out(&wish(5, CloneLayout::Pack));
    assert_eq!(dealt(packed), [("b".into(), 3), ("c".into(), 2)]);
    let near = Wish {
        near: Some(name("a")),
        ..wish(9, CloneLayout::Pack)
    };
    let packed = picture.lay_out(&near);
    assert_eq!(dealt(packed), [("a".into(), 8), ("b".into(), 1)]);
}

#[test]
fn spread_clones_level_what_is_free() {
    let picture = picture(&[("a", 8, 0), ("b", 8, 4), ("c", 8, 7)]);
    let spread = picture.lay_out(&wish(8, CloneLayout::Spread));
    assert_eq!(dealt(spread), [("a".into(), 6), ("b".into(), 2)]);
    let even = self::picture(&[("a", 8, 0), ("b", 8, 0)]);
    let near = Wish {
        near: Some(name("b")),
        ..wish(1, CloneLayout::Spread)
    };
    assert_eq!(dealt(even.lay_out(&near)), [("b".into(), 1)]);
}

#[test]
fn fewer_are_granted_than_wished_for_and_none_is_refused() {
    let mut picture = picture(&[("a", 4, 0), ("b", 4, 3)]);
    let places = picture
        .lay_out(&wish(100, CloneLayout::Spread))
        .expect("some");
    assert_eq!(places.iter().map(|place| place.clones).sum::<u16>(), 5);
    picture.grants.push(Grant {
        id: TicketId::random(),
        user: None,
        holder: name("a"),
        need: wish(1, CloneLayout::Pack).need,
        places,
    });
    let full = picture.lay_out(&wish(1, CloneLayout::Pack));
    assert!(matches!(full, Err(PlacementDenied::NoRoom { .. })));
    assert_eq!(
        picture.lay_out(&wish(0, CloneLayout::Pack)),
        Err(PlacementDenied::Nothing)
    );
}

#[test]
fn memory_runs_out_as_vcpus_do() {
    let picture = picture(&[("a", 100, 0)]);
    let large = Wish {
        need: CloneNeed {
            vcpus: 1,
            memory: ByteCount(20 * GIB),
        },
        ..wish(9, CloneLayout::Pack)
    };
    assert_eq!(dealt(picture.lay_out(&large)), [("a".into(), 3)]);
}

#[test]
fn nothing_goes_to_a_node_that_drains_or_is_gone() {
    let mut picture = picture(&[("a", 8, 0), ("b", 1, 0)]);
    picture.draining.insert(name("a"));
    let places = picture.lay_out(&wish(4, CloneLayout::Spread));
    assert_eq!(dealt(places), [("b".into(), 1)]);
    let only = |node: &str| Wish {
        only: Some(name(node)),
        ..wish(1, CloneLayout::Pack)
    };
    assert_eq!(
        picture.lay_out(&only("a")),
        Err(PlacementDenied::Draining { node: name("a") })
    );
    assert_eq!(
        picture.lay_out(&only("x")),
        Err(PlacementDenied::Gone { node: name("x") })
    );
    assert_eq!(dealt(picture.lay_out(&only("b"))), [("b".into(), 1)]);
}

#[test]
fn a_user_gets_no_more_vcpus_than_the_quota_whatever_the_nodes_have() {
    let mut picture = picture(&[("a", 100, 0), ("b", 100, 0)]);
    picture.quotas.insert("ci".into(), 10);
    let users = &mut picture.offers.get_mut(&name("a")).expect("there").users;
    users.insert("ci".into(), 3);
    let of = |user: &str, vcpus| Wish {
        user: Some(user.into()),
        need: CloneNeed {
            vcpus,
            memory: ByteCount(GIB),
        },
        ..wish(50, CloneLayout::Spread)
    };
    let total = |places: Vec<(String, u16)>| places.iter().map(|it| it.1).sum::<u16>();
    assert_eq!(total(dealt(picture.lay_out(&of("ci", 2)))), 3);
    assert_eq!(total(dealt(picture.lay_out(&of("other", 2)))), 50);
    let places = picture.lay_out(&of("ci", 7)).expect("one");
    picture.grants.push(Grant {
        id: TicketId::random(),
        user: Some("ci".into()),
        holder: name("b"),
        need: of("ci", 7).need,
        places,
    });
    assert_eq!(picture.taken_by("ci"), 10);
    assert_eq!(
        picture.lay_out(&of("ci", 1)),
        Err(PlacementDenied::Quota {
            user: "ci".into(),
            taken: 10,
            limit: 10,
            asked: 50,
        })
    );
}

/// The slow way to say how many fit in all.
fn most(picture: &Picture, wish: &Wish) -> u64 {
    let nodes = picture.offers.iter();
    let open = nodes.filter(|(node, _)| !picture.draining.contains(*node));
    open.map(|(node, offer)| {
        let taken = picture.taken(node);
        (1..=u64::from(wish.count))
            .take_while(|n| {
                let vcpus = u64::from(taken.vcpus) + n * u64::from(wish.need.vcpus);
                let memory = taken.memory.0 + n * wish.need.memory.0;
                vcpus <= offer.offers.vcpus.into() && memory <= offer.offers.memory.0
            })
            .count() as u64
    })
    .sum()
}

prop_compose! {
    fn any_picture()(
        nodes in prop::collection::btree_map(
            "[a-e]", (0..40u32, 0..40u32, 0..64u64, 0..64u64), 0..5),
        draining in prop::collection::btree_set("[a-e]", 0..2),
        grants in prop::collection::vec(("[a-e]", 1..5u16, 1..4u8), 0..4),
        quota in prop::option::of(0..60u32),
    ) -> Picture {
        let offers = nodes.into_iter().map(|(node, (vcpus, taken, memory, used))| {
            let offer = Offer {
                offers: Room { vcpus, memory: ByteCount(memory * GIB) },
                taken: Room { vcpus: taken, memory: ByteCount(used * GIB) },
                vms: 0,
                users: [("u".to_owned(), taken)].into(),
            };
            (name(&node), offer)
        });
        let grants = grants.into_iter().map(|(node, clones, vcpus)| Grant {
            id: TicketId::random(),
            user: Some("u".into()),
            holder: name("a"),
            need: CloneNeed { vcpus, memory: ByteCount(GIB) },
            places: vec![NodeClones { node: name(&node), clones }],
        });
        Picture {
            offers: offers.collect(),
            grants: grants.collect(),
            draining: draining.iter().map(|node| name(node)).collect(),
            quotas: quota.map(|quota| ("u".to_owned(), quota)).into_iter().collect(),
        }
    }
}

proptest! {
    #[test]
    fn as_many_are_granted_as_fit_and_no_node_and_no_user_gets_more_than_there_is(
        picture in any_picture(),
        count in 0..70u16,
        vcpus in 1..5u8,
        memory in 0..8u64,
        layout in prop::sample::select(vec![CloneLayout::Pack, CloneLayout::Spread]),
        near in prop::option::of("[a-e]"),
    ) {
        let wish = Wish {
            user: Some("u".into()),
            count,
            need: CloneNeed { vcpus, memory: ByteCount(memory * GIB) },
            layout,
            near: near.map(|node| name(&node)),
            only: None,
        };
        let left = picture.quotas.get("u").map_or(u64::MAX, |limit| {
            u64::from(limit.saturating_sub(picture.taken_by("u"))) / u64::from(vcpus)
        });
        let expected = most(&picture, &wish).min(left).min(count.into());
        let places = picture.lay_out(&wish);
        let granted = places.as_ref().map_or(0, |places| {
            places.iter().map(|place| u64::from(place.clones)).sum()
        });
        prop_assert_eq!(granted, expected);
        let mut after = picture.clone();
        after.grants.push(Grant {
            id: TicketId::random(),
            user: wish.user.clone(),
            holder: name("a"),
            need: wish.need,
            places: places.clone().unwrap_or_default(),
        });
        let mut nodes = BTreeSet::new();
        for place in places.unwrap_or_default() {
            let taken = after.taken(&place.node);
            let offers = after.offers[&place.node].offers;
            prop_assert!(place.clones > 0 && nodes.insert(place.node.clone()));
            prop_assert!(taken.vcpus <= offers.vcpus && taken.memory <= offers.memory);
            prop_assert!(!after.draining.contains(&place.node));
        }
    }

    #[test]
    fn clones_that_are_spread_leave_no_node_two_clones_freer_than_one_that_got_some(
        picture in any_picture(), count in 1..70u16, vcpus in 1..5u8,
    ) {
        let wish = Wish {
            need: CloneNeed { vcpus, memory: ByteCount(0) },
            ..wish(count, CloneLayout::Spread)
        };
        let places = picture.lay_out(&wish).unwrap_or_default();
        let free = |node: &NodeName, clones: u16| {
            let all = i64::from(picture.offers[node].offers.vcpus);
            all - i64::from(picture.taken(node).vcpus) - i64::from(clones) * i64::from(vcpus)
        };
        let got = |node: &NodeName| {
            places.iter().find(|place| place.node == *node).map_or(0, |place| place.clones)
        };
        // One that is over its memory gets nothing.
        let is_open = |node: &&NodeName| {
            let memory = picture.offers[*node].offers.memory;
            !picture.draining.contains(*node) && picture.taken(node).memory <= memory
        };
        for place in &places {
            for other in picture.offers.keys().filter(is_open) {
                // Before it got its last one, no node had more free.
                let before = free(&place.node, place.clones - 1);
                prop_assert!(before >= free(other, got(other)), "{places:?}");
            }
        }
    }
}
