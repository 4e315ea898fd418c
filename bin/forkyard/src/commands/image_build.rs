//! `image build`: from a recipe of the daemon's, or from a Dockerfile and the folder it is in.

use crate::{
    commands::{copy, vms::spinner},
    output,
};
use anyhow::{Context, bail, ensure};
use clap::Args as ClapArgs;
use forkyard_api_client::{Client, ClientError, UploadError, escaped};
use forkyard_types::{ByteCount, GuestImage, ImageName};
use hyper::Method;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// `image build`
#[derive(Debug, ClapArgs)]
pub struct Build {
    /// Recipe to build now rather than at the first `run`; with -f or -t, the folder that COPY and
    /// ADD take files from, by default the one we are in.
    #[arg(value_name = "RECIPE|CONTEXT")]
    pub what: Option<String>,
    /// Build from this Dockerfile, which is in the context.
    #[arg(short, long, value_name = "DOCKERFILE")]
    pub file: Option<PathBuf>,
    /// Build from a Dockerfile, and call the image this; made of the context's name if absent.
    #[arg(short, long, value_name = "NAME")]
    pub tag: Option<ImageName>,
    /// Value of an ARG of the Dockerfile, which may be said several times; without =VALUE that of our environment.
    /// No place for secrets: the image's history shows it.
    #[arg(long, value_name = "NAME[=VALUE]", value_parser = build_arg)]
    pub build_arg: Vec<(String, String)>,
    /// Have each VM start the image's entry point when it boots.
    #[arg(long)]
    pub start: bool,
    /// Size of the guest's disk in MiB; by default what is in the image, and 512 MiB to work in.
    #[arg(long, value_name = "MIB")]
    pub size: Option<u64>,
}

/// Builds an image.
pub async fn build(client: &Client, wanted: Build) -> anyhow::Result<GuestImage> {
    if wanted.file.is_some() || wanted.tag.is_some() {
        return from_dockerfile(client, wanted).await;
    }
    let Some(name) = wanted.what else {
        bail!("say which recipe to build, or -f DOCKERFILE or -t NAME to build from a Dockerfile");
    };
    ensure!(
        !wanted.start && wanted.size.is_none() && wanted.build_arg.is_empty(),
        "--start, --size and --build-arg are for images that are built from a Dockerfile: say -f or -t"
    );
    let wait = spinner(format!("building {name}"));
    let path = format!("/v1/images/{}", escaped(&name));
    let built = client.call(Method::POST, &path).await;
    wait.finish_and_clear();
    Ok(built?)
}

async fn from_dockerfile(client: &Client, wanted: Build) -> anyhow::Result<GuestImage> {
    let context = PathBuf::from(wanted.what.as_deref().unwrap_or("."));
    let context =
        fs::canonicalize(&context).with_context(|| format!("cannot read {}", context.display()))?;
    ensure!(context.is_dir(), "{} is no folder", context.display());
    let file = wanted.file.unwrap_or_else(|| context.join("Dockerfile"));
    let text =
        fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let inside = fs::canonicalize(&file)?;
    let Ok(inside) = inside.strip_prefix(&context) else {
        bail!(
            "{} is not in {}: put it there, or say another context",
            file.display(),
            context.display()
        );
    };
    let inside = inside.to_str().context("its name is no text")?;
    let name = match wanted.tag {
        Some(name) => name,
        None => named_after(&context)?,
    };
    let there: Vec<GuestImage> = client.call(Method::GET, "/v1/images").await?;
    let taken = there.iter().any(|image| image.name == name.as_str());
    ensure!(
        !taken,
        "there is an image {name} already: say another -t, or `forkyard image rm` it first"
    );
    let mut path = format!("/v1/images/{name}/build?dockerfile={}", escaped(inside));
    if !wanted.build_arg.is_empty() {
        let args: BTreeMap<String, String> = wanted.build_arg.into_iter().collect();
        let args = serde_json::to_string(&args)?;
        path.push_str(&format!("&build_args={}", escaped(&args)));
    }
    if wanted.start {
        path.push_str("&start=true");
    }
    if let Some(size) = wanted.size.and_then(ByteCount::from_mib) {
        path.push_str(&format!("&size={}", size.0));
    }
    let wait = spinner(format!("building {name} from {}", file.display()));
    let (leaving, packing) = copy::packed(context);
    let built = client
        .upload::<GuestImage>(&path, None, leaving, |_| {})
        .await;
    wait.finish_and_clear();
    match (packing.await?, built) {
        (Ok(notes), Ok(image)) => {
            for note in notes {
                tell!("forkyard: {}", output::line(&note));
            }
            Ok(image)
        }
        (_, Err(UploadError::Client(refused))) => {
            let at = at(&refused, &text);
            let failed = anyhow::Error::from(refused);
            Err(match at {
                Some(line) => failed.context(format!("{}:{line} failed", file.display())),
                None => failed,
            })
        }
        (Err(error), _) => Err(error.into()),
        (Ok(_), Err(error)) => Err(error.into()),
    }
}

/// An argument of a build, with its value.
fn build_arg(text: &str) -> Result<(String, String), String> {
    if let Some((name, value)) = text.split_once('=') {
        return Ok((name.to_owned(), value.to_owned()));
    }
    match std::env::var(text) {
        Ok(value) => Ok((text.to_owned(), value)),
        Err(_) => Err(format!(
            "there is no {text} in the environment: say {text}=VALUE"
        )),
    }
}

fn named_after(context: &Path) -> anyhow::Result<ImageName> {
    let last = context.file_name().and_then(|name| name.to_str());
    let name = last.unwrap_or_default().to_ascii_lowercase();
    name.parse()
        .with_context(|| format!("say -t NAME: none can be made of {}", context.display()))
}

/// The line of a Dockerfile whose step the builder says has failed.
fn at(refused: &ClientError, dockerfile: &str) -> Option<usize> {
    let ClientError::Refused(said) = refused else {
        return None;
    };
    line_of(&said.message, dockerfile)
}

/// The line on which the step begins that `said` names, as `building at STEP "RUN x": …`.
fn line_of(said: &str, dockerfile: &str) -> Option<usize> {
    let (_, step) = said.rsplit_once("at STEP \"")?;
    let words = |text: &str| -> Vec<String> {
        text.split_whitespace()
            .map(str::to_ascii_lowercase)
            .collect()
    };
    let mut lines = dockerfile.lines().zip(1..).peekable();
    while let Some((line, number)) = lines.next() {
        let mut whole = line.trim_end().to_owned();
        if whole.trim_start().starts_with('#') {
            continue;
        }
        while whole.ends_with('\\') {
            whole.pop();
            match lines.next() {
                Some((more, _)) if more.trim_start().starts_with('#') => whole.push('\\'),
                Some((more, _)) => whole.push_str(more.trim_end()),
                None => break,
            }
        }
        let whole = words(&whole);
        let step = words(step);
        if !whole.is_empty() && step.len() >= whole.len() {
            let (last, first) = whole.split_last()?;
            // What follows the step begins with its closing quote.
            let end = step[whole.len() - 1].strip_prefix(last.as_str());
            if step[..first.len()] == *first && end.is_some_and(|end| end.starts_with('"')) {
                return Some(number);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_a_build_have_a_value_or_are_in_the_environment() {
        let pair = |name: &str, value: &str| Ok((name.to_owned(), value.to_owned()));
        assert_eq!(build_arg("A=b=c"), pair("A", "b=c"));
        assert_eq!(build_arg("A="), pair("A", ""));
        assert_eq!(build_arg("PATH").map(|it| it.0), Ok("PATH".to_owned()));
        assert!(build_arg("NO_SUCH_VARIABLE_HERE").is_err());
    }

    #[test]
    fn a_step_that_failed_is_found_by_its_line() {
        let text =
            "FROM a\n# RUN false\nRUN  true\nRUN echo \\\n # why\n  x; \\\n  false\ncopy a /b\n";
        let line = |step: &str| {
            let said = format!("much\nError: building at STEP \"{step}\": exit status 1");
            line_of(&said, text)
        };
        assert_eq!(line("RUN true"), Some(3));
        assert_eq!(line("RUN echo   x;   false"), Some(4));
        assert_eq!(line("COPY a /b"), Some(8));
        assert_eq!(line("RUN false"), None);
        assert_eq!(line_of("no such thing", text), None);
    }
}
