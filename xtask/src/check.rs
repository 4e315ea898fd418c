//! Rules every change keeps, all checked even if the first is broken.

use crate::{
    clients, dist::Profile, features, header, house, lints, openapi, pages, run::cargo,
    stages::Stages, supply, supply::Adviser, type_names, untested, validators::Validators,
};
use anyhow::Result;
use std::path::Path;

/// Checks everything.
pub fn all(root: &Path) -> Result<()> {
    let mut stages = Stages::default();
    stages.run("format", || {
        cargo(root).args(["fmt", "--all", "--check"]).done()
    });
    stages.run("lints", || lints::check(root));
    stages.run("documentation", || {
        cargo(root)
            .args([
                "doc",
                "--profile",
                Profile::Quick.name(),
                "--workspace",
                "--no-deps",
                "--keep-going",
                "--document-private-items",
            ])
            .env("RUSTDOCFLAGS", "-D warnings")
            .done()
    });
    stages.run("C header", || header::check(root));
    stages.run("API description", || openapi::check(root));
    let name = "API description, read by other people's tools";
    match Validators::install(root) {
        Ok(validators) => {
            stages.run(name, || validators.check(root));
            stages.run("types of the Python client", || validators.types(root));
        }
        // Where it would not be seen that it was left out, it fails.
        Err(why) if std::env::var_os("CI").is_some() => {
            stages.run(name, || Err::<(), _>(why));
        }
        Err(why) => stages.skip(name, &why),
    }
    stages.run("SDKs are alike", || clients::check(root));
    stages.run("features", || features::check(root));
    stages.run("supply", || supply::check(root));
    match Adviser::find() {
        Ok(adviser) => {
            stages.run("advisories", || adviser.ask(root));
        }
        Err(why) => stages.skip("advisories", &why),
    }
    stages.run("targets without tests", || untested::check(root));
    stages.run("house rules", || house::check(root));
    stages.run("names of public types", || type_names::check(root));
    stages.run("links between pages", || pages::check(root));
    stages.finish()
}
