//! `image` and `doctor`.

use crate::{
    args::{Doctor, Format, Image},
    commands::{transfer, vms::spinner},
    output,
};
use forkyard_client::{Client, escaped};
use forkyard_types::{Diagnosis, GuestImage};
use hyper::Method;
use std::process::ExitCode;

/// Lists, builds, removes, imports or exports guest images.
pub async fn image(client: &Client, format: Format, image: Image) -> anyhow::Result<ExitCode> {
    let images: Vec<GuestImage> = match image {
        Image::Ls => client.call(Method::GET, "/v1/images").await?,
        Image::Build { name } => {
            let wait = spinner(format!("building {name}"));
            let built = client
                .call(Method::POST, &format!("/v1/images/{}", escaped(&name)))
                .await;
            wait.finish_and_clear();
            vec![built?]
        }
        Image::Rm { name } => vec![
            client
                .call(Method::DELETE, &format!("/v1/images/{}", escaped(&name)))
                .await?,
        ],
        Image::Import(wanted) => return transfer::import(client, format, wanted).await,
        Image::Export(wanted) => return transfer::export(client, format, wanted).await,
    };
    match format {
        Format::Json => output::json(&images)?,
        Format::Text => {
            let rows: Vec<_> = images
                .into_iter()
                .map(|image| {
                    let built = image
                        .built
                        .map_or_else(|| "not built".to_owned(), |size| size.to_string());
                    [
                        image.name,
                        built,
                        output::word(&image.origin),
                        image.summary,
                    ]
                })
                .collect();
            output::table(["NAME", "BUILT", "FROM", "SUMMARY"], &rows);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Finds, and removes, leftovers. Exits 1 if something is wrong and still there.
pub async fn doctor(client: &Client, format: Format, doctor: Doctor) -> anyhow::Result<ExitCode> {
    let method = if doctor.repair {
        Method::POST
    } else {
        Method::GET
    };
    let seen: Diagnosis = client.call(method, "/v1/doctor").await?;
    match format {
        Format::Json => output::json(&seen)?,
        Format::Text => report(&seen),
    }
    let well = seen.problems.is_empty() && seen.leftovers.iter().all(|left| left.removed);
    Ok(if well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn report(seen: &Diagnosis) {
    for problem in &seen.problems {
        say!("problem: {problem}");
    }
    for note in &seen.notes {
        say!("note: {note}");
    }
    for left in &seen.leftovers {
        let fate = if left.removed {
            "removed"
        } else {
            "left behind; `forkyard doctor --repair` removes it"
        };
        say!("{} {}: {fate}", left.kind, left.name);
    }
    if seen.problems.is_empty() && seen.leftovers.is_empty() {
        say!("all is well");
    }
}
