//! Kinds of errors, as programs are told.

use super::*;

/// The host's disk is full, as the parts of a host say so.
fn full() -> PartsError {
    PartsError::io("write", Path::new("/disk"))(io::ErrorKind::StorageFull.into())
}

#[test]
fn an_error_of_a_part_is_the_same_whichever_layer_met_it() {
    let met = [
        HostError::from(full()),
        HostError::from(VolumeError::from(full())),
        HostError::from(SnapshotError::from(full())),
        HostError::from(SnapshotError::from(VolumeError::from(full()))),
    ];
    for error in &met {
        assert!(error.is_io(io::ErrorKind::StorageFull), "{error:?}");
        assert_eq!(error.to_api(), met[0].to_api());
    }
}

#[test]
fn faults_of_the_host_itself_are_not_the_askers_whichever_layer_met_them() {
    let text = || "the record cannot be parsed".to_owned();
    let met = [
        HostError::Broken(text()),
        PartsError::Broken(text()).into(),
        VolumeError::Broken(text()).into(),
        VolumeError::from(PartsError::Broken(text())).into(),
        SnapshotError::Broken(text()).into(),
        SnapshotError::from(VolumeError::Broken(text())).into(),
    ];
    for error in &met {
        assert_eq!(error.kind(), ErrorKind::Host, "{error:?}");
        assert_eq!(error.to_api(), met[0].to_api());
    }
    let hint = met[0].to_api().hint.unwrap_or_default();
    assert!(hint.contains("forkyard doctor"), "{hint}");
    let kinds = [
        VolumeError::Broken(text()).kind(),
        SnapshotError::Broken(text()).kind(),
    ];
    assert_eq!(kinds, [ErrorKind::Host; 2]);
}

#[test]
fn a_state_that_passes_is_a_conflict_and_silence_a_timeout() {
    let given_up = HostError::Conflict("the migration was given up".into());
    assert_eq!(given_up.kind(), ErrorKind::Conflict);
    let here = SnapshotError::IsHere { id: VmId::random() };
    assert_eq!(HostError::from(here).kind(), ErrorKind::Conflict);
    let silent = HostError::NotCome {
        what: "a snapshot".into(),
        silent: Duration::from_secs(30),
    };
    assert_eq!(silent.kind(), ErrorKind::Timeout);
}

#[test]
fn another_hosts_nonsense_is_told_under_its_name_and_is_not_the_askers() {
    let told = crate::remote::untold("b", "that it goes on").to_api();
    assert_eq!(told.kind, ErrorKind::Host);
    assert_eq!(told.message, "host b: it did not say that it goes on");
    let hint = told.hint.unwrap_or_default();
    assert!(hint.contains("one version"), "{hint}");
}

#[test]
fn errors_of_snapshots_keep_their_kind_and_hint() {
    let error = HostError::from(SnapshotError::NotNoted);
    assert_eq!(error.kind(), ErrorKind::Conflict);
    let hint = error.to_api().hint.unwrap_or_default();
    assert!(hint.contains("--live"), "{hint}");
}
