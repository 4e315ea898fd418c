//! `image` and `doctor`.

use super::removal::remove;
use crate::{
    args::{Doctor, Format},
    commands::{
        image_build::{self, Build},
        transfer::{self, Export, Import},
        vms::spinner,
    },
    output,
};
use anyhow::Context;
use clap::{Args as ClapArgs, Subcommand};
use forkyard_api_client::{Client, escaped};
use forkyard_types::{
    ByteCount, Diagnosis, EntryPoint, GuestImage, ImageCommitRequest, ImageName, ImagePullRequest,
    ImageReference, Start,
};
use hyper::Method;
use std::process::ExitCode;

/// `image`
#[derive(Debug, Subcommand)]
pub enum Image {
    /// List the recipes, which are built, and the images that came from elsewhere.
    #[command(after_help = "Example: forkyard image ls")]
    Ls,
    /// Show what is known of an image: where it comes from, its digest, and what it runs.
    #[command(after_help = "Example: forkyard image inspect python-3-12-slim")]
    Inspect {
        /// Image.
        name: String,
    },
    /// Fetch a container image from a registry and make a guest image of it.
    ///
    /// Commands of `exec` have its environment, working directory and user. Its entry point is
    /// recorded, and VMs start it only with --start. Takes skopeo.
    #[command(
        after_help = "Examples:\n  forkyard image pull docker.io/library/python:3.12-slim && forkyard run python-3-12-slim\n  forkyard image pull 127.0.0.1:5000/team/web:2 --name web --start"
    )]
    Pull(Pull),
    /// Make an image of a VM's disk. A VM that runs goes on.
    ///
    /// Host keys, machine-id, logs and shell histories are not in the image, so that VMs of it
    /// are not taken for each other.
    #[command(
        after_help = "Examples:\n  forkyard image commit p tools && forkyard run tools\n  forkyard stop p && forkyard image commit p tools -o json"
    )]
    Commit {
        /// VM that runs or has stopped, or a checkpoint: name or id.
        vm: String,
        /// Name of the image.
        name: ImageName,
    },
    /// Build an image from a Dockerfile, or a recipe's now rather than at the first `run`.
    ///
    /// A Dockerfile is built by buildah, on the daemon's host and by its root alone. The entry point is
    /// recorded, and VMs start it only with --start.
    #[command(
        after_help = "Examples:\n  forkyard image build debian\n  forkyard image build -t web . && forkyard run web\n  forkyard image build -f deploy/Dockerfile -t web --start\n  forkyard image build -t web --build-arg VERSION=3.1 ."
    )]
    Build(Build),
    /// Remove an image that was built, or one that came from elsewhere.
    #[command(after_help = "Example: forkyard image rm debian")]
    Rm {
        /// Image.
        name: String,
    },
    /// Make an image of a disk with ext4, or of a container image, whose entry
    /// point then runs in each VM.
    #[command(
        after_help = "Examples:\n  forkyard image import web disk.qcow2 --partition 1\n  skopeo copy docker://docker.io/library/nginx oci-archive:nginx.tar && forkyard image import nginx nginx.tar\n  docker save nginx | forkyard image import nginx - --format oci"
    )]
    Import(Import),
    /// Write the disk of an image, a checkpoint or a stopped VM to a file.
    #[command(
        after_help = "Examples:\n  forkyard image export debian debian.qcow2\n  forkyard checkpoint p --name kept && forkyard image export --vm kept p.raw --format raw"
    )]
    Export(Export),
}

/// `image pull`
#[derive(Debug, ClapArgs)]
pub struct Pull {
    /// Image: `[REGISTRY[:PORT]/]PATH[:TAG]` or `…@DIGEST`; docker.io if no registry is named.
    pub reference: ImageReference,
    /// Name of the image from here on; made of the reference's last part and tag if absent.
    #[arg(long)]
    pub name: Option<ImageName>,
    /// Have each VM start the image's entry point when it boots.
    #[arg(long)]
    pub start: bool,
    /// Size of the guest's disk in MiB; by default what is in the image, and 512 MiB to work in.
    #[arg(long, value_name = "MIB")]
    pub size: Option<u64>,
}

/// Lists, builds, removes, imports or exports guest images.
pub async fn image(client: &Client, format: Format, image: Image) -> anyhow::Result<ExitCode> {
    let images: Vec<GuestImage> = match image {
        Image::Ls => client.call(Method::GET, "/v1/images").await?,
        Image::Build(wanted) => vec![image_build::build(client, wanted).await?],
        Image::Rm { name } => {
            let paths = [format!("/v1/images/{}", escaped(&name))].into_iter();
            return remove(client, format, paths, |gone: &GuestImage| &gone.name).await;
        }
        Image::Inspect { name } => {
            let image = client
                .call(Method::GET, &format!("/v1/images/{}", escaped(&name)))
                .await?;
            return inspected(format, &image);
        }
        Image::Pull(wanted) => vec![pull(client, wanted).await?],
        Image::Commit { vm, name } => {
            let wait = spinner(format!("committing {vm} as {name}"));
            let request = ImageCommitRequest { vm };
            let path = format!("/v1/images/{name}/commit");
            let made = client.post(&path, &request).await;
            wait.finish_and_clear();
            vec![made?]
        }
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

async fn pull(client: &Client, wanted: Pull) -> anyhow::Result<GuestImage> {
    let Pull {
        reference,
        name,
        start,
        size,
    } = wanted;
    let name = match name {
        Some(name) => name,
        None => {
            let made_up = reference.name().parse::<ImageName>();
            made_up.with_context(|| format!("say --name: none can be made of {reference}"))?
        }
    };
    let wait = spinner(format!("pulling {reference} as {name}"));
    let request = ImagePullRequest {
        reference,
        size: size.and_then(ByteCount::from_mib),
        size_mib: None,
        start,
    };
    let path = format!("/v1/images/{name}/pull");
    let pulled = client.post(&path, &request).await;
    wait.finish_and_clear();
    Ok(pulled?)
}

fn inspected(format: Format, image: &GuestImage) -> anyhow::Result<ExitCode> {
    if format == Format::Json {
        output::json(image)?;
        return Ok(ExitCode::SUCCESS);
    }
    let built = image.built.map(|size| size.to_string());
    let mut rows = vec![
        ("name", image.name.clone()),
        ("summary", image.summary.clone()),
        ("on disk", built.unwrap_or_else(|| "not built".to_owned())),
        ("from", output::word(&image.origin)),
    ];
    let mut add = |what, text: Option<String>| {
        rows.extend(
            text.filter(|text| !text.is_empty())
                .map(|text| (what, text)),
        );
    };
    add("source", image.source.clone());
    add("digest", image.digest.clone());
    if let Some(entry) = &image.entry {
        let EntryPoint {
            argv,
            env,
            dir,
            user,
            stop_signal,
            start,
        } = entry;
        add("entry point", Some(argv.join(" ")));
        let starts = match start {
            Start::AtBoot => "when a VM boots",
            Start::Never => "only by hand: forkyard exec",
        };
        add("started", (!argv.is_empty()).then(|| starts.to_owned()));
        add("folder", Some(dir.clone()));
        add("user", Some(user.clone()));
        add("stop signal", Some(stop_signal.clone()));
        for (name, value) in env {
            add("env", Some(format!("{name}={value}")));
        }
    }
    for (what, text) in rows {
        // Images say what they like: nothing of it reaches the terminal as a command.
        let text: String = text
            .chars()
            .map(|c| if c.is_control() { '?' } else { c })
            .collect();
        say!("{what:<12} {text}");
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
