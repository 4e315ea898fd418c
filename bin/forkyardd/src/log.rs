//! Log of the daemon, on standard error.

use anyhow::{Context, bail};
use forkyard_service::log_lines::LogLines;
use tracing_subscriber::{EnvFilter, fmt::format::FmtSpan};

/// Variable for the format of the log.
const FORMAT: &str = "FORKYARD_LOG_FORMAT";
/// Variable for the level of the log.
const FILTER: &str = "FORKYARD_LOG";

/// Begins to write it: a line an event, and one for the end of each span with
/// the time that was spent in it (`busy`, `idle`).
pub fn install() -> anyhow::Result<()> {
    let filter = match std::env::var(FILTER) {
        Ok(filter) => EnvFilter::try_new(filter).with_context(|| FILTER)?,
        Err(_) => EnvFilter::new("info"),
    };
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(LogLines::default)
        .with_span_events(FmtSpan::CLOSE)
        .with_ansi(false);
    match std::env::var(FORMAT).as_deref() {
        Ok("json") => log.json().init(),
        Ok("text" | "") | Err(_) => log.init(),
        Ok(other) => bail!("{FORMAT} is {other:?}: wanted text or json"),
    }
    Ok(())
}
