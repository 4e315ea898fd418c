//! The process of one machine that is made up.
//!
//! ```text
//! control: orders of the engine -> Machine (state of the vCPUs, disk, memory)
//! agent:   messages of the host -> Guest, as far as the vCPUs run
//! ```
//!
//! Started with: the engine's home, the VM, its directory, bytes of memory, the file its
//! memory is a private view of or nothing, its disk or nothing. Says `ready` once it
//! listens. The process outlives its parent.

mod control;
mod disk;
mod guest;
mod memory;
mod program;
mod servers;
mod vcpus;

use disk::Disk;
use forkyard_fake_engine::CONTROL;
use forkyard_vmm::files;
use memory::Memory;
use std::{
    env,
    error::Error,
    io::{Read as _, Write as _},
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};
use vcpus::Vcpus;

/// Parts of a machine.
#[derive(Debug)]
struct Machine {
    vcpus: Vcpus,
    memory: Memory,
    disk: Disk,
    console: console::Console,
}

mod console {
    //! The guest's serial console, for one client at a time.

    use std::{io::Write as _, os::unix::net::UnixStream, sync::Mutex};

    #[derive(Debug, Default)]
    pub struct Console(Mutex<Option<UnixStream>>);

    impl Console {
        pub fn connect(&self, stream: UnixStream) {
            *self.0.lock().expect("no holder panics") = Some(stream);
        }

        /// Writes a line; it is lost while nothing is connected.
        pub fn say(&self, line: &str) {
            if let Some(stream) = &mut *self.0.lock().expect("no holder panics") {
                let _ = writeln!(stream, "{line}\r");
            }
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<PathBuf> = env::args_os().skip(3).map(PathBuf::from).collect();
    let [dir, bytes, file, disk] = &arguments[..] else {
        return Err("wanted: HOME VM DIR BYTES MEMORY DISK".into());
    };
    let bytes = bytes.to_str().unwrap_or_default().parse()?;
    let given = |path: &PathBuf| (!path.as_os_str().is_empty()).then(|| path.clone());
    let file = given(file);
    let waits = file.is_some();
    let machine = Arc::new(Machine {
        vcpus: Vcpus::new(waits),
        memory: Memory::new(bytes, file.as_deref())?,
        disk: Disk::open(given(disk))?,
        console: console::Console::default(),
    });
    let listen = |name: &str| UnixListener::bind(Path::new(dir).join(name));
    let (control, agent) = (listen(CONTROL)?, listen(files::AGENT)?);
    let console = listen(files::CONSOLE_SOCKET)?;
    println!("ready");
    std::io::stdout().flush()?;
    let guest = machine.clone();
    thread::spawn(move || guest::serve(&guest, &agent));
    let talker = machine.clone();
    thread::spawn(move || {
        for stream in console.incoming().flatten() {
            let Ok(mut read) = stream.try_clone() else {
                continue;
            };
            talker.console.connect(stream);
            talker.console.say("a machine that is made up");
            // What is typed goes nowhere.
            thread::spawn(move || while matches!(read.read(&mut [0; 256]), Ok(1..)) {});
        }
    });
    control::serve(&machine, &control);
    Ok(())
}
