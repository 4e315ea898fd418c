//! C and Python programs against an agent that speaks real frames.

use forkyard_agent_link::{Answer, Ask, CloneEnd, FrameReader, Request, SOCKET_ENV, send};
use forkyard_types::{ApiError, ErrorKind, Ticket, TicketClone, TicketId, TicketKind};
use std::{
    net::Ipv4Addr,
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

/// Name of the ticket whose clones fork.
const HIERARCHICAL: &str = "33333333333";

/// Name of the checkpoint that is taken.
const CHECKPOINT: &str = "44444444444";

/// Answers every call as an agent of a parent would; the ticket is used up by
/// its join. Ends with the test.
fn agent(socket: &Path) {
    let listener = UnixListener::bind(socket).expect("socket");
    thread::spawn(move || {
        let mut joined = false;
        for stream in listener.incoming() {
            let mut stream = stream.expect("connection");
            let asked = FrameReader::new(stream.try_clone().expect("clone")).read_message();
            let Ok(Some(Request { ask, .. })) = asked else {
                continue;
            };
            let _ = send(&mut stream, &answer(&ask, &mut joined));
        }
    });
}

fn answer(ask: &Ask, joined: &mut bool) -> Result<Answer, ApiError> {
    let ticket: TicketId = "22222222222".parse().expect("a ticket");
    let spent = ApiError {
        kind: ErrorKind::NotFound,
        message: "used up".into(),
        hint: None,
    };
    match ask {
        Ask::RequestTicket {
            count,
            kind: TicketKind::Hierarchical,
        } => Ok(Answer::Ticket(Ticket {
            id: HIERARCHICAL.parse().expect("a ticket"),
            kind: TicketKind::Hierarchical,
            clones: vec![TicketClone {
                id: 1,
                vcpus: 3,
                processes: u8::try_from(*count).expect("few"),
                ip: Ipv4Addr::new(10, 0, 0, 1),
            }],
        })),
        // The process that clones with it is the clone, and its exit is a success if it
        // says what became of its other processes.
        Ask::Clone { ticket: asked } if asked.as_str() == HIERARCHICAL => Ok(Answer::Cloned {
            id: 1,
            processes: 3,
            failed: vec![],
        }),
        Ask::Exit { status: 5, others } => Err(ApiError {
            kind: ErrorKind::Invalid,
            message: others
                .iter()
                .map(|end| format!("{}:{:?} ", end.id, end.status))
                .collect(),
            hint: None,
        }),
        Ask::RequestTicket { count, kind } => {
            // One less than asked for: a grant may be smaller than a wish.
            let clone = |id| TicketClone {
                id,
                vcpus: 2,
                processes: 1,
                ip: Ipv4Addr::new(10, 0, 0, u8::try_from(id).expect("few")),
            };
            Ok(Answer::Ticket(Ticket {
                id: ticket,
                kind: *kind,
                clones: (1..*count).map(clone).collect(),
            }))
        }
        Ask::Join { ticket: asked } if *asked == ticket && !*joined => {
            *joined = true;
            Ok(Answer::Joined(vec![
                CloneEnd {
                    id: 1,
                    status: Some(0),
                },
                CloneEnd {
                    id: 2,
                    status: Some(7),
                },
            ]))
        }
        Ask::Clone { ticket: asked } if *asked == ticket => Ok(Answer::Cloned {
            id: 0,
            processes: 1,
            failed: vec![],
        }),
        Ask::WaitFork { .. } => Ok(Answer::Forked { id: 4 }),
        Ask::Checkpoint => Ok(Answer::Checkpointed {
            checkpoint: CHECKPOINT.parse().expect("an id"),
        }),
        Ask::CreateClones {
            checkpoint,
            ticket: asked,
        } if checkpoint.as_str() == CHECKPOINT && *asked == ticket => Ok(Answer::Cloned {
            id: 0,
            processes: 1,
            failed: vec![],
        }),
        Ask::DropCheckpoint { checkpoint } if checkpoint.as_str() == CHECKPOINT => {
            Ok(Answer::Dropped)
        }
        Ask::CreateClones { .. } | Ask::DropCheckpoint { .. } => Err(spent),
        Ask::Clone { .. } | Ask::Join { .. } | Ask::Kill { .. } => Err(spent),
        Ask::Disjoint {
            address: 1..,
            bytes: 4096,
        } => Ok(Answer::Marked),
        Ask::Disjoint { address, bytes } => Err(ApiError {
            kind: ErrorKind::Invalid,
            message: format!("{bytes} at {address}"),
            hint: None,
        }),
        Ask::Exit { .. }
        | Ask::DisjointFrames(_)
        | Ask::RequestDetached { .. }
        | Ask::EndWithMe { .. } => Err(ApiError {
            kind: ErrorKind::Invalid,
            message: "not a clone".into(),
            hint: None,
        }),
    }
}

/// The library as cargo built it beside this test.
fn built() -> PathBuf {
    let test = std::env::current_exe().expect("this test");
    test.parent().expect("deps folder").to_owned()
}

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn said(command: &mut Command) -> String {
    let output = command.output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

#[test]
fn a_c_program_forks_joins_and_hears_why_something_failed() {
    let folder = tempfile::tempdir().expect("folder");
    let (program, socket) = (
        folder.path().join("calls"),
        folder.path().join("agent.sock"),
    );
    agent(&socket);
    said(
        Command::new("gcc")
            .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-I"])
            .arg(here("include"))
            .arg("-o")
            .arg(&program)
            .arg(here("tests/calls.c"))
            .arg(built().join("libforkyard.a"))
            .args(["-lpthread", "-ldl", "-lm"]),
    );
    let text = said(Command::new(&program).env(SOCKET_ENV, &socket));
    let want = "ticket for 2: 1 has 2 vcpus at 10.0.0.1, 9 has 0\nclone 0\nwell 1\nstatus 0 7 -1\n\
                kill 1 used up\nnull 1 no ticket was given\n\
                checkpoint 0 44444444444\ncreated 0\ndropped 0\nanother 1 used up\nnone 1 no checkpoint was given\n\
                disjoint 0\nelsewhere 1 7 at 0\n";
    assert_eq!(text, want);
}

#[test]
fn a_python_program_forks_joins_and_hears_why_something_failed() {
    let folder = tempfile::tempdir().expect("folder");
    let socket = folder.path().join("agent.sock");
    agent(&socket);
    let text = said(
        Command::new("python3")
            .env(SOCKET_ENV, &socket)
            .env("FORKYARD_LIBRARY", built().join("libforkyard.so"))
            .env("PYTHONPATH", here("../python"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .arg("-c")
            .arg(
                "import forkyard\n\
             t = forkyard.request_ticket(3)\n\
             print(t.id, [(c.id, c.vcpus, c.ip) for c in t.clones])\n\
             me, then = forkyard.checkpoint()\n\
             forkyard.create_clones(then, t)\n\
             forkyard.drop_checkpoint(then)\n\
             print(me, then)\n\
             for data in bytes(4096), bytearray(4096): print(forkyard.disjoint(data))\n\
             try: forkyard.disjoint(memoryview(bytes(70))[:66])\n\
             except forkyard.ForkError as e: print(e.kind, str(e).split()[0])\n\
             print(forkyard.clone(t), forkyard.join(t))\n\
             try: forkyard.kill(t)\n\
             except forkyard.ForkError as e: print(e.kind, e)\n\
             try: forkyard.exit(0)\n\
             except forkyard.ForkError as e: print(e.kind, e)\n",
            ),
    );
    let want = "22222222222 [(1, 2, '10.0.0.1'), (2, 2, '10.0.0.2')]\n0 44444444444\nNone\nNone\ninvalid 66\n0 {1: 0, 2: 7}\n\
                not_found used up\ninvalid not a clone\n";
    assert_eq!(text, want);
}

#[test]
fn in_a_clone_of_a_hierarchical_ticket_processes_are_forked_and_have_the_numbers() {
    let folder = tempfile::tempdir().expect("folder");
    let (program, socket) = (
        folder.path().join("processes"),
        folder.path().join("agent.sock"),
    );
    agent(&socket);
    said(
        Command::new("gcc")
            .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-I"])
            .arg(here("include"))
            .arg("-o")
            .arg(&program)
            .arg(here("tests/processes.c"))
            .arg(built().join("libforkyard.a"))
            .args(["-lpthread", "-ldl", "-lm"]),
    );
    let want = "3 of 3 vcpus\n2:Some(12) 3:Some(13) \n";
    let text = said(Command::new(&program).env(SOCKET_ENV, &socket));
    assert_eq!(text, want);

    let text = said(
        Command::new("python3")
            .env(SOCKET_ENV, &socket)
            .env("FORKYARD_LIBRARY", built().join("libforkyard.so"))
            .env("PYTHONPATH", here("../python"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .arg("-c")
            .arg(
                "import forkyard\n\
             t = forkyard.request_ticket(3, hierarchical=True)\n\
             print(len(t.clones), 'of', t.clones[2].vcpus, 'vcpus', flush=True)\n\
             me = forkyard.clone(t)\n\
             assert me == forkyard.id()\n\
             if me > 1: forkyard.exit(10 + me)\n\
             try: forkyard.exit(5)\n\
             except forkyard.ForkError as e: print(e)\n",
            ),
    );
    assert_eq!(text, want);
}

#[test]
fn without_an_agent_a_program_is_told_where_it_was_looked_for() {
    let text = said(Command::new("python3")
        .env(SOCKET_ENV, "/nonexistent/agent.sock")
        .env("FORKYARD_LIBRARY", built().join("libforkyard.so"))
        .env("PYTHONPATH", here("../python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .args(["-c", "import forkyard\ntry: forkyard.request_ticket(1)\nexcept forkyard.ForkError as e: print(e.kind, e)"]));
    assert!(
        text.starts_with("agent ") && text.contains("/nonexistent/agent.sock"),
        "{text}"
    );
}
