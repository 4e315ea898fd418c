//! Demonstrations and measurements of several hosts on one machine: hosts are
//! network namespaces with all else of their own, as in the tests.
//!
//! `cargo xtask demo-cluster` and `cargo xtask bench-cluster` run it, with what
//! it needs in its environment.

mod bench;
mod demo;
mod report;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(about = "Several hosts on one machine")]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Three nodes of a cluster: a VM is forked over them, and one dies
    Demo(demo::Options),
    /// Forks over several hosts: how soon, and what crosses the network
    Bench(Box<bench::Options>),
}

fn main() {
    match Args::parse().what {
        What::Demo(options) => demo::show(&options),
        What::Bench(options) => bench::measure(&options),
    }
}
