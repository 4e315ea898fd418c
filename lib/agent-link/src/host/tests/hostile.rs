//! A guest that says anything at all, in any order and any number.

use super::*;
use crate::{CloneEnd, MAX_PAYLOAD};
use forkyard_types::{NotStarted, TicketKind};
use proptest::prelude::*;

/// Content that a guest may write at once.
#[derive(Clone, Debug)]
enum Write {
    Bytes(Vec<u8>),
    Message(ToHost),
    /// A frame that ends too early.
    Part(ToHost, prop::sample::Index),
}

fn epoch() -> impl Strategy<Value = Epoch> {
    any::<bool>().prop_map(|_| Epoch::random())
}

fn words() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(".{0,40}", 0..4)
}

fn message() -> impl Strategy<Value = ToHost> {
    // The host's own numbers are anywhere; small ones may be guessed.
    let session = prop_oneof![any::<u32>(), 0..4u32].prop_map(Session);
    let call = prop_oneof![any::<u32>(), 0..4u32].prop_map(CallId);
    let bytes = prop::collection::vec(any::<u8>(), 0..200);
    let stream = prop_oneof![Just(Stream::Out), Just(Stream::Err)];
    let ask = prop_oneof![
        any::<u16>().prop_map(|count| Ask::RequestTicket {
            count,
            kind: TicketKind::Hierarchical,
        }),
        Just(Ask::Clone {
            ticket: TicketId::random()
        }),
        Just(Ask::Checkpoint),
        Just(Ask::CreateClones {
            checkpoint: VmId::random(),
            ticket: TicketId::random()
        }),
        Just(Ask::DropCheckpoint {
            checkpoint: VmId::random()
        }),
        (any::<u8>(), any::<u16>()).prop_map(|(status, id)| Ask::Exit {
            status,
            others: vec![CloneEnd { id, status: None }; 9],
        }),
    ];
    prop_oneof![
        Just(ToHost::Started),
        (any::<u16>(), prop::option::of(epoch()))
            .prop_map(|(version, epoch)| ToHost::Hello { version, epoch }),
        prop::option::of(".{0,40}").prop_map(|failed| ToHost::Quiesced {
            fork: ForkId::random(),
            failed,
        }),
        (epoch(), words()).prop_map(|(epoch, problems)| ToHost::Identified { epoch, problems }),
        words().prop_map(|problems| ToHost::Released { problems }),
        (session.clone(), stream, bytes).prop_map(|(session, stream, data)| {
            ToHost::ExecOutput {
                session,
                stream,
                data,
            }
        }),
        (session.clone(), any::<u16>())
            .prop_map(|(session, chunks)| ToHost::ExecMore { session, chunks }),
        (session.clone(), any::<u32>())
            .prop_map(|(session, pid)| ToHost::ExecStarted { session, pid }),
        (session, any::<u8>(), ".{0,40}").prop_map(|(session, code, message)| {
            let outcome = Err(NotStarted { code, message });
            ToHost::ExecEnd { session, outcome }
        }),
        (call.clone(), ask).prop_map(|(call, ask)| ToHost::Call {
            call,
            request: Request {
                id: RequestId::random(),
                ask,
            },
        }),
        call.prop_map(|call| ToHost::Forget { call }),
    ]
}

fn write() -> impl Strategy<Value = Write> {
    prop_oneof![
        1 => prop::collection::vec(any::<u8>(), 0..600).prop_map(Write::Bytes),
        6 => message().prop_map(Write::Message),
        1 => (message(), any::<prop::sample::Index>()).prop_map(|(m, at)| Write::Part(m, at)),
    ]
}

fn bytes_of(write: &Write) -> Vec<u8> {
    let frame = |message| encode(message).expect("small");
    match write {
        Write::Bytes(bytes) => bytes.clone(),
        Write::Message(message) => frame(message),
        Write::Part(message, at) => {
            let mut frame = frame(message);
            frame.truncate(at.index(frame.len()));
            frame
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn whatever_a_guest_says_the_host_keeps_little_of_it_and_hears_it_out(
        writes in prop::collection::vec(write(), 0..120),
    ) {
        let runtime = tokio::runtime::Runtime::new().expect("threads");
        runtime.block_on(async {
            let (guest, mut agent, mut calls) = pair().await;
            let drain = tokio::spawn(async move { while calls.recv().await.is_some() {} });
            let exec = guest.exec(Command::of_root(vec!["sleep".into()])).await.expect("asked");
            for write in &writes {
                agent.stream.write_all(&bytes_of(write)).await.expect("it is read");
            }
            // A frame that has begun may swallow as much as it claimed.
            agent.stream.write_all(&vec![0; MAX_PAYLOAD]).await.expect("it is read");
            assert!(lock(&guest.shared.calls).len() <= 64, "calls are bounded");
            assert!(lock(&guest.shared.desks).len() <= 1, "commands are the host's");
            // It is still there, and talks sense to one that talks sense again.
            // What it heard before may have been taken for the answer.
            guest.shared.hello.clear();
            let hello = ToHost::Hello { version: VERSION, epoch: None };
            let sense = async {
                loop {
                    agent.say(&hello).await;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            let heard = async {
                while guest.hello_again().await.is_err() {}
            };
            let heard = tokio::time::timeout(SOON, async {
                tokio::select! {
                    () = heard => {}
                    () = sense => {}
                }
            });
            heard.await.expect("it is heard");
            drop(exec);
            drain.abort();
        });
    }
}

#[tokio::test]
async fn a_guest_that_talks_nonsense_is_hung_up_on_and_heard_again() {
    let (guest, mut agent, _calls) = pair().await;
    let asked = guest.exec(Command::of_root(vec!["x".into()])).await;
    let mut exec = asked.expect("asked");
    let noise = vec![b'F'; 1 << 20];
    let floods = async { while agent.stream.write_all(&noise).await.is_ok() {} };
    let (end, ()) = tokio::join!(exec.next(), floods);
    assert!(
        matches!(end, Some(ExecOut::Lost(LinkError::Protocol { .. }))),
        "{end:?}"
    );
    (agent.stream, _) = agent.listener.accept().await.expect("connected again");
    agent.decoder = Decoder::default();
    assert_eq!(agent.hear().await, ToGuest::Hello { version: VERSION });
    assert_eq!(agent.hear().await, ToGuest::Resume);
    let (pong, ()) = tokio::join!(guest.ping(SOON), async {
        assert_eq!(agent.hear().await, ToGuest::Ping);
        agent.say(&ToHost::MemoryWait { percent: 1 }).await;
    });
    pong.expect("answered");
}
