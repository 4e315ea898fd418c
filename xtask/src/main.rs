//! The project's chores: `cargo xtask CHORE`.
//!
//! ```text
//! dist ----> target/dist: what is installed
//!   prepare -> kernel, initramfs and image in the cache
//!     test, demo, bench
//! check: rules that need no guest
//! ```
//!
//! The Makefile has a short name for each.

mod beside;
mod cancel;
mod check;
mod clients;
mod dist;
mod features;
mod guest;
mod header;
mod house;
mod kvm_lab;
mod language;
mod lints;
mod openapi;
mod packages;
mod pages;
mod pool;
mod programs;
mod results;
mod run;
mod sched_ext;
mod space;
mod stages;
mod supply;
mod test;
mod type_names;
mod untested;
mod validators;
mod walk;

use anyhow::Result;
use clap::{Parser, Subcommand};
use dist::Profile;
use kvm_lab::Work;
use programs::Selection;
use std::path::{Path, PathBuf};

#[derive(Debug, Parser)]
#[command(about = "The project's chores")]
struct Args {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Debug, Subcommand)]
enum Chore {
    /// Install the Debian packages that building and testing take
    Setup,
    /// Build everything into target/dist
    Dist,
    /// Build, as for tests, what guests boot from: kernel, initramfs and an image
    Prepare {
        /// Recipe of the image, a file in images/ without .toml
        #[arg(default_value = guest::TEST_IMAGE)]
        image: String,
    },
    /// Check formatting, lints, documentation and the house rules
    Check,
    /// Write the C library's header anew from its code
    Header,
    /// Write the description of the HTTP API anew from the daemon's code
    Openapi,
    /// Build, check and test everything, or run some of the tests
    Test {
        /// Only programs whose paths hold one of these, such as lib/pager; checks are left out
        programs: Vec<String>,
        /// After --: only tests whose names hold one of these
        #[arg(last = true)]
        tests: Vec<String>,
    },
    /// Build the dispatcher with sched_ext, and its scheduler, into target/sched-ext
    SchedExt,
    /// Test it, in a guest whose kernel has sched_ext
    TestSchedExt {
        /// Only the tests whose names hold one of these
        only: Vec<String>,
    },
    /// Test on KVM, in a lab of its own where the host has none
    TestKvm {
        /// Only what shows that it works at all: a few minutes
        #[arg(long)]
        smoke: bool,
        /// Measure instead: forks beside QEMU's migration
        #[arg(long, conflicts_with_all = ["smoke", "only"])]
        bench: bool,
        /// Only the tests whose names hold one of these
        only: Vec<String>,
    },
    /// Build Debian packages into target/deb
    Deb,
    /// Install, use, upgrade and purge them on a fresh Debian of its own
    TestDeb,
    /// Show what it does
    Demo {
        /// Passed on to demo/run
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Measure
    Bench {
        /// Passed on to bench/run
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Show a cluster: a VM forked over several hosts, and the death of one
    DemoCluster {
        /// Passed on to e2e/examples/hosts
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Measure forks over several hosts
    BenchCluster {
        /// Passed on to e2e/examples/hosts
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Measure scheduling policies on real guests
    BenchSched {
        /// Passed on to bench/sched/run
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Measure volumes beside qemu-nbd
    BenchVolume {
        /// Passed on to bench/volume/run
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Measure VMs that are woken from a substrate beside VMs that boot
    BenchSubstrate {
        /// Passed on to bench/substrate/run
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Measure a web server that grows by forking beside a static cluster
    BenchAutoscale {
        /// Passed on to bench/autoscale/run
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Check and measure programs that grow by forking: Open MPI in Debian guests
    BenchApps {
        /// Passed on to bench/apps/run
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Measure the patterns of use beside what is done without a fork
    BenchPatterns {
        /// Passed on to bench/patterns/run
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Measure guests that adapt beside guests that do not
    BenchFriendly {
        /// Passed on to bench/friendly/run
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

fn main() -> Result<()> {
    let root = root();
    match Args::parse().chore {
        Chore::Setup => run::program(&root.join("scripts/setup"), &root).done(),
        Chore::Dist => dist::build(&root, Profile::Release).map(drop),
        Chore::Prepare { image } => {
            let dist = dist::build(&root, Profile::Quick)?;
            for (name, value) in guest::prepare(&root, &dist, &image)?.variables() {
                println!("{name}={}", value.display());
            }
            Ok(())
        }
        Chore::Check => check::all(&root),
        Chore::Header => header::write(&root),
        Chore::Openapi => openapi::write(&root),
        Chore::Test { programs, tests } => test::run(&root, &Selection { programs, tests }),
        Chore::SchedExt => sched_ext::build(&root).map(drop),
        Chore::TestSchedExt { only } => sched_ext::test(&root, &only),
        Chore::TestKvm { smoke, bench, only } => {
            let (profile, work) = match (bench, smoke) {
                (true, _) => (Profile::Release, Work::Bench),
                (false, true) if only.is_empty() => (Profile::Quick, Work::Smoke),
                (false, _) => (Profile::Quick, Work::Tests(&only)),
            };
            let dist = dist::build(&root, profile)?;
            guest::prepare(&root, &dist, guest::TEST_IMAGE)?;
            kvm_lab::run(&root, &dist, &work)
        }
        Chore::Deb => deb(&root).map(drop),
        Chore::TestDeb => {
            let packages = deb(&root)?;
            let dist = root.join("target/dist");
            let prepared = guest::prepare(&root, &dist, guest::TEST_IMAGE)?;
            let mut test = run::program(&root.join("packaging/deb/test"), &root).arg(packages);
            for (name, value) in prepared.variables() {
                test = test.env(name, value);
            }
            test.done()
        }
        Chore::Demo { args } => script(&root, "demo/run", &args),
        Chore::Bench { args } => script(&root, "bench/run", &args),
        Chore::DemoCluster { args } => hosts(&root, "demo", &args),
        Chore::BenchCluster { args } => hosts(&root, "bench", &args),
        Chore::BenchSched { args } => script(&root, "bench/sched/run", &args),
        Chore::BenchVolume { args } => script(&root, "bench/volume/run", &args),
        Chore::BenchSubstrate { args } => script(&root, "bench/substrate/run", &args),
        Chore::BenchAutoscale { args } => script(&root, "bench/autoscale/run", &args),
        Chore::BenchApps { args } => script(&root, "bench/apps/run", &args),
        Chore::BenchPatterns { args } => script(&root, "bench/patterns/run", &args),
        Chore::BenchFriendly { args } => script(&root, "bench/friendly/run", &args),
    }
}

/// Builds Debian packages; returns the folder in which they are.
fn deb(root: &Path) -> Result<PathBuf> {
    packages::install(root, &["dpkg-dev", "binutils"])?;
    let dist = dist::build(root, Profile::Release)?;
    let packages = root.join("target/deb");
    run::program(&root.join("packaging/deb/build"), root)
        .arg(&packages)
        .env("FORKYARD_DIST", dist)
        .done()?;
    Ok(packages)
}

/// Runs one of the tree's scripts on a fresh build.
fn script(root: &Path, name: &str, args: &[String]) -> Result<()> {
    let dist = dist::build(root, Profile::Release)?;
    run::program(&root.join(name), root)
        .args(args)
        .env("FORKYARD_DIST", dist)
        .done()
}

/// Runs what takes several hosts, on a fresh build.
fn hosts(root: &Path, what: &str, args: &[String]) -> Result<()> {
    let dist = dist::build(root, Profile::Release)?;
    let prepared = guest::prepare(root, &dist, guest::TEST_IMAGE)?;
    let build = ["build", "--release", "--workspace", "--example", "hosts"];
    run::cargo(root).args(build).done()?;
    let mut hosts = run::program(&root.join("target/release/examples/hosts"), root);
    for (name, value) in prepared.variables() {
        hosts = hosts.env(name, value);
    }
    hosts.args([what]).args(args).done()
}

/// The workspace, from where this crate is in it.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}
