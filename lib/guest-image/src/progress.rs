//! Progress of a build, as its caller is told of it.

/// Something a build did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildEvent<'a> {
    /// Another process is building the same thing; this one waits for it.
    Waiting,
    /// A new step began: words for a person, such as "unpacking packages".
    Step(&'a str),
    /// A program that does the work said this line.
    Output(&'a str),
}

/// Receiver of events. Called on the thread that builds; whatever it does, the
/// build waits for.
pub(crate) type Progress<'a> = &'a mut dyn FnMut(BuildEvent<'_>);
