//! Commands in guests: what is asked, what goes to a command that runs, and what it does.

use crate::ApiError;
use serde::{Deserialize, Serialize};

/// `POST /v1/vms/{id}/exec`: run a command in a guest.
///
/// The answer is a stream of lines, each one [`ExecEvent`] as JSON. What the request leaves open
/// is as the container image of the guest says, if it was made of one.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    /// Program and arguments; the program is looked up in the guest's PATH.
    #[cfg_attr(feature = "schema", schema(min_items = 1))]
    pub argv: Vec<String>,
    /// Environment added to that of the image.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(schema_with = schema::pairs))]
    pub env: Vec<(String, String)>,
    /// Working directory; if absent the image's, or `/`.
    #[serde(default)]
    pub workdir: Option<String>,
    /// `USER` or `USER:GROUP`, each a name of the guest's or a number; if absent the image's, or
    /// root.
    #[serde(default)]
    pub user: Option<String>,
    /// A terminal of this size for the command. Standard error is standard output then.
    #[serde(default)]
    pub tty: Option<WindowSize>,
    /// Standard input of the command, base64; then end of file. With a stream of
    /// [`ExecInput`] it comes before what that brings.
    #[serde(default)]
    pub stdin: Option<String>,
    /// Seconds after which the command, and all that it started, is killed.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 4_294_967_295_u32))]
    pub timeout_s: Option<u32>,
    /// Leave the command to itself: it reads nothing and goes on whatever becomes of the client. The
    /// answer ends with [`ExecEvent::Started`]. The last of what it writes is kept for clients that
    /// attach to it.
    #[serde(default)]
    pub detach: bool,
    /// Keep the command: it goes on whatever becomes of the client, which can attach to it again.
    /// [`ExecEvent::Started`] comes before all that it writes.
    #[serde(default)]
    pub keep: bool,
    /// Label of a command that is kept.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(max_length = 256))]
    pub tag: Option<String>,
}

#[cfg(feature = "schema")]
mod schema {
    use utoipa::{
        PartialSchema, ToSchema,
        openapi::{Array, Object, RefOr, Schema, Type},
    };

    /// Schema of a list of names with their values.
    pub fn pairs() -> Array {
        let text = Object::builder().schema_type(Type::String);
        let pair = Array::builder()
            .items(text)
            .min_items(Some(2))
            .max_items(Some(2));
        let pairs = Array::builder().items(pair);
        pairs
            .description(Some(
                "Environment added to that of the image: names and values.",
            ))
            .build()
    }

    /// Number of a signal.
    pub struct SignalNumber;

    impl PartialSchema for SignalNumber {
        fn schema() -> RefOr<Schema> {
            let number = Object::builder().schema_type(Type::Integer);
            number.minimum(Some(1)).maximum(Some(64)).into()
        }
    }

    impl ToSchema for SignalNumber {}

    #[cfg(test)]
    mod tests {
        use crate::{ExecInput, ExecRequest, ForkRequest};
        use utoipa::PartialSchema;

        fn of<T: PartialSchema>() -> serde_json::Value {
            serde_json::to_value(T::schema()).expect("JSON")
        }

        #[test]
        fn bounds_that_requests_are_held_to_are_in_their_schemas() {
            let env = &of::<ExecRequest>()["properties"]["env"]["items"];
            assert_eq!((&env["minItems"], &env["maxItems"]), (&2.into(), &2.into()));
            assert_eq!(of::<ForkRequest>()["properties"]["to"]["maxItems"], 256);
            let input = of::<ExecInput>().to_string();
            assert!(input.contains("SignalNumber"), "{input}");
            let signal = of::<super::SignalNumber>();
            assert_eq!(
                (&signal["minimum"], &signal["maximum"]),
                (&1.into(), &64.into())
            );
        }
    }
}

/// Command of a guest that goes on without a client: `GET /v1/vms/{id}/sessions`.
///
/// The guest's agent keeps it, so a daemon that dies changes nothing, and clones have it, too. The
/// last [`KeptCommand::OUTPUT`] bytes of its output are kept; so are the last
/// [`KeptCommand::ENDED`] commands that have ended.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptCommand {
    /// Process id, by which the command is known.
    pub pid: u32,
    /// Label of the command.
    pub tag: Option<String>,
    /// Program and arguments, cut off after [`KeptCommand::ARGV`] bytes.
    pub argv: Vec<String>,
    /// Working directory, if it was started with one.
    pub workdir: Option<String>,
    /// True if it has a terminal.
    pub tty: bool,
    /// Seconds since 1970, by the guest's clock, at which it was started.
    pub started: u64,
    /// Exit status; none while it runs.
    pub exit: Option<ExitStatus>,
    /// Clients that are attached.
    pub attached: u16,
    /// Bytes of output that are kept.
    pub kept: u32,
    /// Bytes of output that had to go.
    pub lost: u64,
}

impl KeptCommand {
    /// Bytes of output kept of each.
    pub const OUTPUT: usize = 128 << 10;
    /// Commands that have ended which are remembered.
    pub const ENDED: usize = 16;
    /// Commands that may run at once.
    pub const RUNNING: usize = 128;
    /// Bytes of a command's words that are told.
    pub const ARGV: usize = 1 << 10;
}

/// Query of `POST /v1/vms/{vm}/sessions/{pid}`.
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "schema", into_params(parameter_in = Query))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// False: nothing of what it writes is wanted, its end alone.
    #[serde(default = "yes")]
    pub output: bool,
}

/// Query of `DELETE /v1/vms/{vm}/sessions/{pid}`.
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "schema", into_params(parameter_in = Query))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionSignal {
    /// Signal for its first process, by number; 2 and 3, which are keys of a terminal, are for its
    /// process group, and 9 kills all that it started, too.
    #[serde(default = "kill")]
    #[cfg_attr(feature = "schema", param(minimum = 1, maximum = 64))]
    pub signal: u8,
}

fn yes() -> bool {
    true
}

fn kill() -> u8 {
    9
}

/// A line that follows the request in a body of `application/x-ndjson`: input for a command that
/// runs. Empty lines are ignored; the end of the body is the end of the command's input.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecInput {
    /// Bytes for its standard input, base64. [`ExecInput::WINDOW`] bytes may be on their way that
    /// no [`ExecEvent::Taken`] has told of; more, and signals wait behind them.
    Stdin(String),
    /// The end of its standard input.
    Eof,
    /// The terminal has another size.
    Resize(WindowSize),
    /// A signal for its first process, by number; 2 and 3, which are keys of a terminal, are for its
    /// process group, and 9 kills all that it started, too. What is left when it ends after 1, 2, 3 or 15
    /// is hung up on.
    #[cfg_attr(feature = "schema", schema(value_type = schema::SignalNumber))]
    Signal(u8),
}

impl ExecInput {
    /// Bytes of standard input that may be on their way to a command before signals have to wait
    /// for it to read them.
    pub const WINDOW: u32 = 512 << 10;
}

/// Characters that fit on a terminal.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowSize {
    /// Lines.
    #[cfg_attr(feature = "schema", schema(maximum = 65_535))]
    pub rows: u16,
    /// Characters in a line.
    #[cfg_attr(feature = "schema", schema(maximum = 65_535))]
    pub cols: u16,
}

/// Something a command did.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecEvent {
    /// Standard output of the command: base64.
    Stdout(String),
    /// Standard error of the command: base64.
    Stderr(String),
    /// The command ended; nothing follows.
    Exit(ExitStatus),
    /// The guest or the link to it failed; nothing follows.
    Error(ApiError),
    /// The command runs. Only of a command that is kept; nothing follows if it
    /// was left to itself.
    Started(ExecStarted),
    /// So many bytes of its standard input have been passed on; 0: its end. Only if input is streamed.
    Taken(u32),
    /// The command could not be started; nothing follows.
    NotStarted(NotStarted),
    /// The command took longer than it was given, and was killed with all that
    /// it started; nothing follows.
    TimedOut(ExecTimedOut),
}

/// A command that is kept.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecStarted {
    /// Process id in the guest.
    pub pid: u32,
}

/// A command that was killed.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecTimedOut {
    /// Seconds it was given.
    pub after_s: u32,
}

impl ExecEvent {
    /// Tells whether nothing follows; of [`ExecEvent::Started`] the request
    /// tells.
    pub fn is_last(&self) -> bool {
        match self {
            Self::Stdout(_) | Self::Stderr(_) | Self::Taken(_) | Self::Started(_) => false,
            Self::Exit(_) | Self::Error(_) | Self::NotStarted(_) | Self::TimedOut(_) => true,
        }
    }
}

/// Reason why a command could not be started.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotStarted {
    /// As shells report it: 127 if there is no such program, else 126.
    pub code: u8,
    /// Reason, with the program's name.
    pub message: String,
}

impl NotStarted {
    /// There is no such program.
    pub const NOT_FOUND: u8 = 127;
    /// Status of a command that cannot be run, or not as was asked.
    pub const CANNOT_RUN: u8 = 126;
}

/// End of a process.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    /// By itself, with this code.
    Code(u8),
    /// By this signal.
    Signal(u8),
}

impl ExitStatus {
    /// The code a shell would report: 128 and the signal's number for a signal.
    pub fn shell_code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => signal.saturating_add(128),
        }
    }
}
