//! Work that blocks, kept off the threads that serve all requests.

/// Runs `work` on a thread of its own. Cancelling the future abandons only the
/// result: the work goes on to its end.
pub async fn blocking<T, E>(work: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, E>
where
    T: Send + 'static,
    E: Send + 'static,
{
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(broke) => std::panic::resume_unwind(broke.into_panic()),
    }
}
