//! Removing several things that have names.

use super::vms::PARTLY;
use crate::{args::Format, output};
use forkyard_api_client::Client;
use hyper::Method;
use serde::{Serialize, de::DeserializeOwned};
use std::{fmt::Display, process::ExitCode};

/// Removes what is at each path, and prints what was removed. A failure is told, and does not keep the
/// others from being removed.
pub async fn remove<T: DeserializeOwned + Serialize, N: Display>(
    client: &Client,
    format: Format,
    paths: impl ExactSizeIterator<Item = String>,
    name: impl Fn(&T) -> &N,
) -> anyhow::Result<ExitCode> {
    let asked = paths.len();
    let mut removed: Vec<T> = Vec::new();
    for path in paths {
        match client.call(Method::DELETE, &path).await {
            Ok(gone) => removed.push(gone),
            Err(error) => output::complain(&error.into()),
        }
    }
    match format {
        Format::Json => output::json(&removed)?,
        Format::Text => removed.iter().for_each(|gone| say!("{}", name(gone))),
    }
    Ok(match removed.len() {
        done if done == asked => ExitCode::SUCCESS,
        0 => ExitCode::FAILURE,
        _ => ExitCode::from(PARTLY),
    })
}
