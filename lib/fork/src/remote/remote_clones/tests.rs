use super::*;
use forkyard_types::PageSecret;
use forkyard_types::{Awaited, PageCount, VmId, VmPart};

fn vm(fork: ForkId, awaits: Option<ImageId>) -> VmView {
    let view = serde_json::json!({
        "id": VmId::random(), "name": "p-1", "state": "running", "family": FamilyId::random(),
        "member": 1, "parent": null, "fork": fork, "epoch": forkyard_types::Epoch::random(),
        "image": "tiny", "vcpus": 1, "memory": 1 << 28,
        "address": {"ip": "10.128.0.3", "prefix": 21, "mac": [70, 89, 0, 0, 0, 1]},
        "pid": null, "accel": "tcg", "created": 7,
    });
    let view: VmView = serde_json::from_value(view).expect("a VM");
    let awaits = awaits.map(|image| Awaited {
        image,
        part: VmPart::Memory,
        pages: PageCount(9),
        away: PageCount(1),
    });
    VmView {
        awaits: awaits.into_iter().collect(),
        ..view
    }
}

fn away(images: Vec<ImageId>) -> RemoteShare {
    RemoteShare {
        family: FamilyId::random(),
        images,
        key: PageSecret(String::new()),
        stage: Stage::Sent,
        clones: Vec::new(),
        promised: false,
        pending_removal: false,
        moved: None,
        founders: Vec::new(),
        silence: None,
    }
}

#[test]
fn a_list_asked_for_before_an_answer_tells_nothing_of_that_fork() {
    let (fork, other) = (ForkId::random(), ForkId::random());
    let remote_clones = RemoteClones::default();
    for (fork, peer) in [(fork, "b"), (other, "b"), (other, "c")] {
        lock(&remote_clones.0).insert((fork, peer.into()), away(Vec::new()));
    }
    assert!(remote_clones.listed_at("b").is_empty());
    remote_clones.change((fork, "b"), |away| away.stage = Stage::Made);
    remote_clones.change((other, "c"), |away| away.stage = Stage::Released);
    assert_eq!(remote_clones.listed_at("b"), [fork]);
    assert_eq!(remote_clones.listed_at("c"), [other]);
}

#[tokio::test]
async fn what_is_made_while_a_host_is_asked_is_not_over_for_being_missing() {
    let (before, meanwhile) = (ForkId::random(), ForkId::random());
    let remote_clones = RemoteClones::default();
    for fork in [before, meanwhile] {
        lock(&remote_clones.0).insert((fork, "b".into()), away(Vec::new()));
    }
    remote_clones.change((before, "b"), |away| away.stage = Stage::Made);
    let asked = async {
        remote_clones.change((meanwhile, "b"), |away| away.stage = Stage::Made);
        "nothing"
    };
    assert_eq!(
        remote_clones.listed("b", asked).await,
        (vec![before], "nothing")
    );
}

#[test]
fn pages_are_offered_until_no_vm_there_awaits_any() {
    let (fork, image) = (ForkId::random(), ImageId::random());
    let mut away = away(vec![image]);
    away.stage = Stage::Made;
    let (ours, another) = (vm(fork, None), vm(ForkId::random(), Some(image)));
    assert!(!away.learn(fork, "b", &[ours.clone(), another]));
    assert_eq!(away.clones.len(), 1);
    assert!(away.learn(fork, "b", std::slice::from_ref(&ours)));
    assert!(!away.is_over(), "the clone is still there");
    assert!(!away.learn(fork, "b", &[ours]), "said once");
    away.learn(fork, "b", &[]);
    assert!(away.is_over());
}

#[test]
fn a_host_that_is_silent_is_said_to_be_and_its_clones_are_shown_as_they_were() {
    let fork = ForkId::random();
    let mut away = away(Vec::new());
    away.stage = Stage::Made;
    away.learn(fork, "b", &[vm(fork, None)]);
    away.silence = Some("host b cannot be asked".into());
    let shown: Vec<_> = away.views().collect();
    assert_eq!(shown.len(), 1);
    assert_eq!(shown[0].host.as_deref(), Some("b"));
    assert!(shown[0].silence.is_some());
    away.learn(fork, "b", &[vm(fork, None)]);
    assert!(away.views().all(|vm| vm.silence.is_none()));
}

#[test]
fn of_what_another_host_lists_nothing_counts_that_is_here_and_nothing_twice() {
    let fork = ForkId::random();
    let (here, there, on) = (vm(fork, None), vm(fork, None), vm(fork, None));
    let at = |vm: &VmView, host: &str| VmView {
        host: Some(host.into()),
        ..vm.clone()
    };
    let listed = vec![
        at(&here, "a"),
        at(&there, "c"),
        there.clone(),
        at(&on, "c"),
        at(&on, "c"),
    ];
    let left = without_echoes(listed, |id| id == here.id);
    let left: Vec<_> = left.iter().map(|vm| (vm.id, vm.host.clone())).collect();
    assert_eq!(left, [(there.id, None), (on.id, Some("c".into()))]);
}
