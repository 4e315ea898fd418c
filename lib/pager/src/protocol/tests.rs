use super::*;
use forkyard_types::PageNo;
use std::io::Write;

fn pair() -> (UnixStream, UnixStream) {
    UnixStream::pair().expect("pair")
}

#[test]
fn every_request_comes_back_as_it_was() {
    let (here, there) = pair();
    let image = ImageId::random();
    let requests = [
        Request::Ping,
        Request::Promise {
            image,
            pages: PageCount(7),
        },
        Request::Publish {
            image,
            parent: Some(ImageId::random()),
        },
        Request::Publish {
            image,
            parent: None,
        },
        Request::Fail {
            image,
            reason: "läuft nicht".into(),
        },
        Request::Retire { image },
        Request::Offer {
            image,
            offering: Offering {
                key: PeerKey([7; 32]),
                group: Some(9),
                hosts: 2,
                push: Push::Everything,
                disjoint: vec![Run {
                    first: PageNo(3),
                    pages: PageCount(4),
                }],
                last: Some(vec![Run::one(PageNo(9))]),
                changed: Some(vec![Run::one(PageNo(5))]),
            },
        },
        Request::Stats { image },
        Request::List,
        Request::Replace {
            program: "/usr/bin/true".into(),
        },
        Request::Shutdown(Shutdown::WhenUnused),
        Request::Shutdown(Shutdown::Now),
    ];
    for request in requests {
        send(&here, &request, None).expect("sends");
        let (got, fd) = receive::<Request>(&there)
            .expect("receives")
            .expect("not the end");
        assert_eq!(got, request);
        assert!(fd.is_none());
    }
}

#[test]
fn bytes_of_a_message_are_as_documented() {
    let (here, mut there) = pair();
    send(
        &here,
        &Request::Promise {
            image: ImageId(Default::default()),
            pages: PageCount(3),
        },
        None,
    )
    .expect("sends");
    drop(here);
    let mut raw = Vec::new();
    there.read_to_end(&mut raw).expect("reads");
    let body = br#"{"promise":{"image":"00000000-0000-0000-0000-000000000000","pages":3}}"#;
    assert_eq!(raw[..4], [70, 0, 0, 0]);
    assert_eq!(raw[4..], body[..]);
}

#[test]
fn message_longer_than_allowed_is_refused_unread() {
    let (mut here, there) = pair();
    here.write_all(&u32::MAX.to_le_bytes()).expect("writes");
    let error = receive::<Request>(&there).expect_err("too long");
    assert_eq!(error.kind(), ErrorKind::InvalidData);
}

#[test]
fn message_cut_short_is_an_error_and_not_the_end() {
    for cut in [2, 6] {
        let (mut here, there) = pair();
        here.write_all(&[8, 0, 0, 0, b'"', b'P'][..cut])
            .expect("writes");
        drop(here);
        assert!(receive::<Request>(&there).is_err());
    }
}

#[test]
fn unknown_request_is_an_error() {
    let (mut here, there) = pair();
    here.write_all(b"\x09\0\0\0\"destroy\"").expect("writes");
    assert!(receive::<Request>(&there).is_err());
}
