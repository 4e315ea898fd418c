//! Undoes what a program did when the program dies.
//!
//! ```text
//! program --pipe: what there is to undo--> guard
//!    X (killed)          end of file --> undoes it
//! ```
//!
//! The guard is a process of its own that does nothing but read a pipe. The kernel closes
//! the pipe when the program dies, however it dies, so the guard knows at once without
//! asking. Should the guard die first, the program notices at its next word or look, and
//! starts another, which is told everything again. Should both die in between, what was
//! done stays; the next program that wants the same place puts it right.
//!
//! Which words there are, and how they are undone, is the program's: [`Undo`].

use std::{
    fmt::Display,
    fs::File,
    io::{self, BufRead, Write},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    str::FromStr,
    sync::Arc,
};

/// All there is to undo.
pub trait Undo: Default {
    /// One thing that is to be undone, or need not be any more, as one line of text.
    type Word: Display + FromStr;

    /// Hears a word.
    fn hear(&mut self, word: Self::Word);

    /// Returns words that bring another to the same knowledge.
    fn words(&self) -> Vec<Self::Word>;

    /// Undoes it. What is gone needs nothing.
    fn undo(&self);
}

/// Does a guard's work until `told` ends: for the main of its process. Lines that are no
/// words are passed over.
pub fn guard<U: Undo>(told: impl BufRead) {
    let mut undo = U::default();
    for line in told.lines() {
        let Ok(line) = line else { break };
        if let Ok(word) = line.parse() {
            undo.hear(word);
        }
    }
    undo.undo();
}

/// Group of processes that a guard begins in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processes {
    /// That of the program: the guard's main may begin a session of its own.
    Programs,
    /// One of its own, from the first moment: what ends a terminal's group of processes
    /// does not end it.
    Own,
}

/// Command that starts a guard.
#[derive(Clone, Debug)]
pub struct Program {
    /// The program.
    pub path: PathBuf,
    /// Arguments that make it a guard.
    pub arguments: Vec<String>,
    /// A file it holds open while it runs, as its standard output, where it says nothing: a
    /// process that locked it, locked it for the guard too, so that the next can wait for
    /// both.
    pub holds: Option<Arc<File>>,
    /// Group of processes it begins in.
    pub processes: Processes,
}

/// A guard, from the program's side. Dropping it has it undo everything it still knows,
/// and waits until it has.
#[derive(Debug)]
pub struct Guard<U: Undo> {
    program: Program,
    child: Child,
    tell: Option<ChildStdin>,
    undo: U,
}

/// State of a guard's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alive {
    /// The guard lives.
    Yes,
    /// The guard has died.
    No,
}

impl<U: Undo> Guard<U> {
    /// Starts one.
    pub fn start(program: Program) -> io::Result<Self> {
        let (child, tell) = spawn(&program)?;
        Ok(Self {
            program,
            child,
            tell: Some(tell),
            undo: U::default(),
        })
    }

    /// Tells it what is about to be done: an error means it must not be.
    pub fn tell(&mut self, word: U::Word) -> io::Result<()> {
        let line = format!("{word}\n");
        self.undo.hear(word);
        self.say(&line)
    }

    /// Looks whether it lives.
    pub fn alive(&mut self) -> io::Result<Alive> {
        Ok(match self.child.try_wait()? {
            None => Alive::Yes,
            Some(_) => Alive::No,
        })
    }

    /// Starts another in place of one that died, and tells it everything.
    pub fn replace(&mut self) -> io::Result<()> {
        let (child, tell) = spawn(&self.program)?;
        self.child = child;
        self.tell = Some(tell);
        let words = self.undo.words();
        words
            .iter()
            .try_for_each(|word| self.say(&format!("{word}\n")))
    }

    /// Returns all that it knows.
    pub fn undo(&self) -> &U {
        &self.undo
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes a line at once: a guard never reads a part of one whose writer was killed.
    fn say(&mut self, line: &str) -> io::Result<()> {
        let tell = self.tell.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        tell.write_all(line.as_bytes())
    }
}

impl<U: Undo> Drop for Guard<U> {
    fn drop(&mut self) {
        self.tell = None;
        let ended = self.child.wait();
        // One that was killed has undone nothing.
        if !ended.is_ok_and(|status| status.success()) {
            self.undo.undo();
        }
    }
}

fn spawn(program: &Program) -> io::Result<(Child, ChildStdin)> {
    let holds = match &program.holds {
        Some(file) => file.try_clone()?.into(),
        None => Stdio::null(),
    };
    let mut command = Command::new(&program.path);
    command
        .args(&program.arguments)
        .stdin(Stdio::piped())
        .stdout(holds);
    match program.processes {
        Processes::Programs => {}
        Processes::Own => {
            command.process_group(0);
        }
    }
    let mut child = command.spawn()?;
    let tell = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    Ok((child, tell))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::BTreeSet, fs, path::Path};

    /// Files that are to be removed, by `+ PATH` and `- PATH`.
    #[derive(Debug, Default)]
    struct Files(BTreeSet<String>);

    #[derive(Debug)]
    enum Word {
        Is(String),
        IsNot(String),
    }

    impl Display for Word {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            match self {
                Self::Is(path) => write!(f, "+ {path}"),
                Self::IsNot(path) => write!(f, "- {path}"),
            }
        }
    }

    impl FromStr for Word {
        type Err = ();

        fn from_str(line: &str) -> Result<Self, ()> {
            match line.split_at_checked(2) {
                Some(("+ ", path)) => Ok(Self::Is(path.to_owned())),
                Some(("- ", path)) => Ok(Self::IsNot(path.to_owned())),
                Some(_) | None => Err(()),
            }
        }
    }

    impl Undo for Files {
        type Word = Word;

        fn hear(&mut self, word: Word) {
            match word {
                Word::Is(path) => self.0.insert(path),
                Word::IsNot(path) => self.0.remove(&path),
            };
        }

        fn words(&self) -> Vec<Word> {
            self.0.iter().cloned().map(Word::Is).collect()
        }

        fn undo(&self) {
            for path in &self.0 {
                let _ = fs::remove_file(path);
            }
        }
    }

    /// A guard that writes down all it hears, and undoes nothing.
    fn scribe(told: &Path) -> Guard<Files> {
        let file = File::options().create(true).append(true).open(told);
        let program = Program {
            path: "/bin/cat".into(),
            arguments: Vec::new(),
            holds: Some(Arc::new(file.expect("opened"))),
            processes: Processes::Own,
        };
        Guard::start(program).expect("started")
    }

    fn kill(guard: &mut Guard<Files>) {
        guard.child.kill().expect("killed");
        guard.child.wait().expect("reaped");
    }

    #[test]
    fn a_guard_undoes_what_it_was_told_of_and_not_undone() {
        let dir = tempfile::tempdir().expect("a folder");
        let [goes, stays] = ["goes", "stays"].map(|name| dir.path().join(name));
        let told = format!("+ {0}\nrubbish\n+ {1}\n- {1}\n", goes.display(), {
            stays.display()
        });
        for path in [&goes, &stays] {
            fs::write(path, "").expect("written");
        }
        guard::<Files>(told.as_bytes());
        assert!(!goes.exists() && stays.exists());
    }

    #[test]
    fn the_next_guard_is_told_everything_that_still_counts() {
        let dir = tempfile::tempdir().expect("a folder");
        let told = dir.path().join("told");
        let mut guard = scribe(&told);
        assert_eq!(guard.alive().expect("looked"), Alive::Yes);
        let words = [
            Word::Is("a".into()),
            Word::Is("b".into()),
            Word::IsNot("a".into()),
        ];
        for word in words {
            guard.tell(word).expect("told");
        }
        kill(&mut guard);
        assert_eq!(guard.alive().expect("looked"), Alive::No);
        fs::write(&told, "").expect("emptied");
        guard.replace().expect("another");
        drop(guard);
        assert_eq!(fs::read_to_string(&told).expect("read"), "+ b\n");
    }

    #[test]
    fn a_program_whose_guard_was_killed_undoes_it_itself() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("file");
        fs::write(&file, "").expect("written");
        let mut guard = scribe(&dir.path().join("told"));
        let word = Word::Is(file.display().to_string());
        guard.tell(word).expect("told");
        kill(&mut guard);
        drop(guard);
        assert!(!file.exists());
    }
}
