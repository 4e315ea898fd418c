//! `link`: budgets of the links to other hosts.

use crate::{args::Format, commands::volume::size, output};
use clap::Subcommand;
use forkyard_api_client::{Client, escaped};
use forkyard_types::{BitRate, ByteCount, LinkBudget, LinkView};
use hyper::Method;
use std::process::ExitCode;

/// `link`
#[derive(Debug, Subcommand)]
pub enum Link {
    /// List links to other hosts, their budgets, and what was sent today.
    #[command(after_help = "Example: forkyard link ls")]
    Ls,
    /// Bound what is sent to a host of volumes' blocks that nothing waits for. What is waited for is sent at
    /// once, and counts. Limits that are not given there are none of.
    #[command(
        after_help = "Examples:\n  forkyard link budget h1 --rate 20mbit --daily 10G\n  forkyard link budget h1 --price 0.09 --money 2    # 2 a day, at 0.09 for 10^9 bytes\n  forkyard link budget h1 --none"
    )]
    Budget {
        /// Host, as it is called here.
        host: String,
        /// Bits a second, as in 20mbit.
        #[arg(long)]
        rate: Option<BitRate>,
        /// Bytes a day (UTC): bytes, or a number with K, M, G or T.
        #[arg(long, value_parser = size)]
        daily: Option<ByteCount>,
        /// Price of 10^9 bytes, in any currency.
        #[arg(long, requires = "money")]
        price: Option<f64>,
        /// Money for a day, in the same currency.
        #[arg(long, requires = "price")]
        money: Option<f64>,
        /// No limit.
        #[arg(long, conflicts_with_all = ["rate", "daily", "price"])]
        none: bool,
    },
}

/// Carries out one of them.
pub async fn link(client: &Client, format: Format, command: Link) -> anyhow::Result<ExitCode> {
    let all: Vec<LinkView> = match command {
        Link::Ls => client.call(Method::GET, "/v1/links").await?,
        Link::Budget {
            host,
            rate,
            daily,
            price,
            money,
            none: _,
        } => {
            let budget = LinkBudget {
                rate,
                daily,
                price,
                money,
            };
            let path = format!("/v1/links/{}/budget", escaped(&host));
            let seen: LinkView = client.put(&path, &budget).await?;
            if format == Format::Json {
                output::json(&seen)?;
                return Ok(ExitCode::SUCCESS);
            }
            vec![seen]
        }
    };
    match format {
        Format::Json => output::json(&all)?,
        Format::Text => show(&all),
    }
    Ok(ExitCode::SUCCESS)
}

fn show(all: &[LinkView]) {
    let row = |it: &LinkView| {
        [
            it.host.clone(),
            it.budget.rate.map(|it| it.to_string()).unwrap_or_default(),
            it.daily_bytes.map(|it| it.to_string()).unwrap_or_default(),
            it.sent_today.to_string(),
            match it.waits_s {
                Some(wait) => format!("used up for {} min", wait.div_ceil(60)),
                None => String::new(),
            },
        ]
    };
    let rows: Vec<_> = all.iter().map(row).collect();
    output::table(["HOST", "RATE", "A DAY", "SENT TODAY", "BUDGET"], &rows);
}
