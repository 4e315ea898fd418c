use super::*;

const FROM: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn access() -> (tempfile::TempDir, Access) {
    let folder = tempfile::tempdir().expect("folder");
    let access = Access::open(&folder.path().join("db")).expect("records");
    (folder, access)
}

fn request(name: &str, expires_s: Option<u64>) -> TokenRequest {
    TokenRequest {
        name: name.into(),
        expires_s,
    }
}

#[test]
fn a_token_admits_until_it_is_taken_back() {
    let (_folder, access) = access();
    let (view, token) = access.grant(request("ci", None), 7).expect("given");
    let now = Instant::now();
    let admitted = access.admit(FROM, Some(&token.0), u64::MAX, now);
    assert_eq!(admitted.expect("it holds"), view);
    assert_eq!(access.list().expect("listed"), std::slice::from_ref(&view));
    access.revoke("ci").expect("taken back");
    assert!(matches!(
        access.admit(FROM, Some(&token.0), 7, now),
        Err(Refused::Unknown)
    ));
    assert!(matches!(
        access.revoke("ci"),
        Err(TokenError::NoSuchToken { .. })
    ));
}

#[test]
fn a_token_holds_until_the_second_it_expires() {
    let (_folder, access) = access();
    let (_, token) = access.grant(request("ci", Some(10)), 100).expect("given");
    let at = |now| access.admit(FROM, Some(&token.0), now, Instant::now());
    at(109).expect("it holds");
    assert!(matches!(at(110), Err(Refused::Expired { name }) if name == "ci"));
}

#[test]
fn a_token_with_any_part_changed_is_unknown() {
    let (_folder, access) = access();
    let (_, TokenSecret(a)) = access.grant(request("a", None), 7).expect("given");
    let (_, TokenSecret(b)) = access.grant(request("b", None), 7).expect("given");
    let (a_id, a_secret) = a.rsplit_once('_').map_or(("", ""), |it| it);
    let mixed = format!("{a_id}_{}", &b[b.len() - a_secret.len()..]);
    let now = Instant::now();
    for wrong in [
        &mixed,
        &a[1..],
        &a[..a.len() - 1],
        &a.replacen("fy", "fx", 1),
        "",
        "fy__",
    ] {
        let told = access.admit(FROM, Some(wrong), 7, now);
        assert!(matches!(told, Err(Refused::Unknown)), "{wrong}: {told:?}");
    }
}

#[test]
fn no_secret_is_in_the_records() {
    let (folder, access) = access();
    let (_, token) = access.grant(request("ci", None), 7).expect("given");
    drop(access);
    let (_, secret) = parse(&token.0).expect("a token");
    // Which may hold the same character as what is between the parts.
    let text = token.0.splitn(3, '_').nth(2).expect("its secret");
    for file in std::fs::read_dir(folder.path()).expect("folder") {
        let bytes = std::fs::read(file.expect("file").path()).expect("read");
        assert!(!bytes.windows(SECRET).any(|at| at == secret));
        assert!(!bytes.windows(text.len()).any(|at| at == text.as_bytes()));
    }
    assert!(!format!("{token:?}").contains(text));
}

#[test]
fn a_valid_token_is_admitted_however_often_its_address_failed() {
    let (_folder, access) = access();
    let (_, token) = access.grant(request("ci", None), 7).expect("given");
    let now = Instant::now();
    for wrong in [None, Some("fy_x")].repeat(50) {
        let told = access.admit(FROM, wrong, 7, now);
        assert!(matches!(told, Err(Refused::NoToken | Refused::Unknown)));
    }
    assert!(!access.delay(FROM, now).is_zero(), "refusals come late");
    access
        .admit(FROM, Some(&token.0), 7, now)
        .expect("it is valid");
}

#[test]
fn a_name_that_cannot_be_shown_is_refused() {
    let (_folder, access) = access();
    for name in ["", "a\nb", &"x".repeat(NAME + 1)] {
        let told = access.grant(request(name, None), 7);
        assert!(matches!(told, Err(TokenError::Name { .. })), "{name:?}");
    }
}

#[test]
fn a_time_that_no_token_can_hold_is_refused() {
    let (_folder, access) = access();
    for seconds in [0, LIFETIME.end() + 1, u64::MAX] {
        let told = access.grant(request("ci", Some(seconds)), 7);
        assert!(
            matches!(told, Err(TokenError::Lifetime { .. })),
            "{seconds}"
        );
    }
    access
        .grant(request("ci", Some(*LIFETIME.end())), 7)
        .expect("given");
}

#[test]
fn the_name_of_a_tokens_scheme_is_in_any_case() {
    for value in ["Bearer fy_x", "bearer fy_x", "BEARER fy_x"] {
        assert_eq!(bearer(value), Some("fy_x"));
    }
    for value in ["Basic fy_x", "fy_x", ""] {
        assert_eq!(bearer(value), None);
    }
}
