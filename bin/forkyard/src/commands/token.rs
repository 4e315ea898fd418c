//! `token`: tokens that grant use of the API over the network.

use crate::{args::Format, output};
use clap::Subcommand;
use forkyard_api_client::{Client, escaped};
use forkyard_types::{TokenGrant, TokenRequest, TokenView};
use hyper::Method;
use std::{
    process::ExitCode,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Some of several things asked for failed.
const PARTLY: u8 = 3;

/// `token`
#[derive(Debug, Subcommand)]
pub enum Token {
    /// Make a token. It is shown this once; the host keeps a hash of it alone.
    #[command(after_help = "Example: forkyard token create ci --expires 30d")]
    Create {
        /// Name that you give it.
        name: String,
        /// Time it holds, as in 12h or 30d; for ever if absent.
        #[arg(long, value_parser = humantime::parse_duration)]
        expires: Option<Duration>,
    },
    /// List the tokens.
    #[command(after_help = "Example: forkyard token ls")]
    Ls,
    /// Take tokens back: from now on they are refused.
    #[command(after_help = "Example: forkyard token rm ci")]
    Rm {
        /// Names or ids.
        #[arg(required = true)]
        tokens: Vec<String>,
    },
}

/// Makes, lists or removes tokens.
pub async fn token(client: &Client, format: Format, token: Token) -> anyhow::Result<ExitCode> {
    match token {
        Token::Create { name, expires } => create(client, format, name, expires).await,
        Token::Ls => {
            let tokens: Vec<TokenView> = client.call(Method::GET, "/v1/tokens").await?;
            show(format, tokens)?;
            Ok(ExitCode::SUCCESS)
        }
        Token::Rm { tokens } => remove(client, format, tokens).await,
    }
}

async fn create(
    client: &Client,
    format: Format,
    name: String,
    expires: Option<Duration>,
) -> anyhow::Result<ExitCode> {
    let request = TokenRequest {
        name,
        expires_s: expires.map(|length| length.as_secs()),
    };
    let grant: TokenGrant = client.post("/v1/tokens", &request).await?;
    match format {
        Format::Json => output::json(&grant)?,
        Format::Text => {
            say!("export FORKYARD_TOKEN={}", grant.token.0);
            match grant.remote {
                Some(remote) => {
                    say!("export FORKYARD_CA={}", remote.fingerprint);
                    tell!(
                        "and FORKYARD_URL=https://HOST:PORT; the daemon listens on {}",
                        remote.listen
                    );
                }
                None => tell!(
                    "this daemon does not listen on the network yet: `forkyardd --listen ADDRESS:PORT`"
                ),
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn remove(client: &Client, format: Format, tokens: Vec<String>) -> anyhow::Result<ExitCode> {
    let mut done: Vec<TokenView> = Vec::new();
    let mut failed = false;
    for token in tokens {
        match client
            .call(Method::DELETE, &format!("/v1/tokens/{}", escaped(&token)))
            .await
        {
            Ok(token) => done.push(token),
            Err(error) => {
                failed = true;
                output::complain(&error.into());
            }
        }
    }
    let code = match (failed, done.is_empty()) {
        (false, _) => ExitCode::SUCCESS,
        (true, true) => ExitCode::FAILURE,
        (true, false) => ExitCode::from(PARTLY),
    };
    match format {
        Format::Json => output::json(&done)?,
        Format::Text => done.iter().for_each(|token| say!("{}", token.name)),
    }
    Ok(code)
}

fn show(format: Format, tokens: Vec<TokenView>) -> anyhow::Result<()> {
    if format == Format::Json {
        return output::json(&tokens);
    }
    let rows: Vec<_> = tokens
        .into_iter()
        .map(|token| {
            [
                token.name,
                day(token.created),
                end(token.expires),
                token.id.to_string(),
            ]
        })
        .collect();
    output::table(["NAME", "CREATED", "EXPIRES", "ID"], &rows);
    Ok(())
}

fn end(expires: Option<u64>) -> String {
    match expires {
        Some(at) if moment(at) <= SystemTime::now() => format!("{} (over)", day(at)),
        Some(at) => day(at),
        None => "never".into(),
    }
}

fn moment(seconds: u64) -> SystemTime {
    // A token may be asked to hold until after the end of all calendars.
    UNIX_EPOCH + Duration::from_secs(seconds.min(LAST))
}

/// The last second of the year 9999.
const LAST: u64 = 253_402_300_799;

/// A second since 1970 as a date.
pub fn day(seconds: u64) -> String {
    humantime::format_rfc3339_seconds(moment(seconds)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_outlives_the_calendar_is_still_listed() {
        assert!(end(Some(u64::MAX)).starts_with("9999-12-31"));
        assert!(end(Some(1)).ends_with("(over)"));
        assert_eq!(end(None), "never");
    }
}
