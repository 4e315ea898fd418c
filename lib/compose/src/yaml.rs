//! The documented subset of compose files, in YAML.
//!
//! ```text
//! text --bounded--> Yaml --each service--> ComposeFile, as the TOML of the same composition
//! ```
//!
//! Keys outside of the subset are refused by name and line: a file that means something else here
//! than elsewhere would be worse than none. Values are taken as they are written: `${NAME}`, which
//! elsewhere is replaced, is refused.
//!
//! Aliases are bounded in number and in what they expand to, and so are nesting and length.

mod values;

use crate::{ComposeError, ComposeFile, HealthFile, MemberFile};
use forkyard_types::{NetworkPolicy, Publish, Restart, VmName};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_saphyr::{Spanned, budget, options};
use std::collections::BTreeMap;
use values::{Address, Command, DependsOn, Environment, Memory, Port, Test, Text, Time};

/// Longest file.
pub const LONGEST: usize = 256 << 10;
/// Kinds of what a file is made of, each at most.
const NODES: usize = 20_000;
/// Depth of a file at most.
const DEPTH: usize = 32;
/// Aliases, and times that one anchor is used.
const ALIASES: usize = 256;

/// A file, as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Yaml {
    name: Option<Text>,
    /// Obsolete: says nothing.
    #[serde(rename = "version")]
    _version: Option<IgnoredAny>,
    /// Rights of all members on the network, as in TOML.
    #[serde(rename = "x-network", default)]
    network: NetworkPolicy,
    #[serde(default)]
    services: BTreeMap<String, Spanned<Service>>,
    volumes: Option<Spanned<IgnoredAny>>,
    networks: Option<Spanned<IgnoredAny>>,
    secrets: Option<Spanned<IgnoredAny>>,
    configs: Option<Spanned<IgnoredAny>>,
}

/// A service, as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Service {
    image: Option<Text>,
    #[serde(rename = "x-substrate")]
    substrate: Option<VmName>,
    /// Size of the root disk.
    #[serde(rename = "x-disk")]
    disk: Option<Memory>,
    cpus: Option<Spanned<Text>>,
    mem_limit: Option<Memory>,
    #[serde(default)]
    environment: Environment,
    #[serde(default)]
    ports: Vec<Port>,
    /// Addresses of its own.
    #[serde(rename = "x-addresses", default)]
    addresses: Vec<Address>,
    command: Option<Command>,
    healthcheck: Option<Check>,
    #[serde(default)]
    depends_on: DependsOn,
    restart: Option<Spanned<Text>>,
    volumes: Option<Spanned<IgnoredAny>>,
    build: Option<Spanned<IgnoredAny>>,
    networks: Option<Spanned<IgnoredAny>>,
    network_mode: Option<Spanned<IgnoredAny>>,
    env_file: Option<Spanned<IgnoredAny>>,
    entrypoint: Option<Spanned<IgnoredAny>>,
    secrets: Option<Spanned<IgnoredAny>>,
    configs: Option<Spanned<IgnoredAny>>,
    deploy: Option<Spanned<IgnoredAny>>,
    privileged: Option<Spanned<IgnoredAny>>,
    container_name: Option<Spanned<IgnoredAny>>,
}

/// A test, as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Check {
    test: Option<Test>,
    interval: Option<Time>,
    timeout: Option<Time>,
    retries: Option<u32>,
    start_period: Option<Time>,
    #[serde(default)]
    disable: bool,
}

/// Reads a file's text.
pub fn read(text: &str) -> Result<ComposeFile, ComposeError> {
    if text.len() > LONGEST {
        return Err(ComposeError::Form(format!(
            "it has {} bytes, of which {LONGEST} may be",
            text.len()
        )));
    }
    let mut options = options! {
        budget: budget! {
            max_documents: 1,
            max_nodes: NODES,
            max_events: 3 * NODES,
            max_depth: DEPTH,
            max_aliases: ALIASES,
            max_anchors: ALIASES,
            max_total_scalar_bytes: LONGEST,
        },
        with_snippet: false,
    };
    options.alias_limits.max_total_replayed_events = NODES;
    options.alias_limits.max_alias_expansions_per_anchor = ALIASES;
    let yaml: Yaml = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| ComposeError::Form(error.to_string()))?;
    let Yaml {
        name,
        _version: _,
        network,
        services,
        volumes,
        networks,
        secrets,
        configs,
    } = yaml;
    refuse(
        None,
        [
            (
                volumes,
                "volumes",
                "members have no volumes: their disks are their own",
            ),
            (
                networks,
                "networks",
                "all members are on one network; x-network says what it may reach",
            ),
            (
                secrets,
                "secrets",
                "copy files in with `forkyard cp`, or use the TOML form's copy",
            ),
            (
                configs,
                "configs",
                "copy files in with `forkyard cp`, or use the TOML form's copy",
            ),
        ],
    )?;
    let members = services.into_iter().map(|(name, service)| {
        let line = service.referenced.line();
        let member = member_of(&name, line, service.value)?;
        Ok((name, member))
    });
    Ok(ComposeFile {
        name: name.map(|name| name.0),
        network,
        members: members.collect::<Result<_, _>>()?,
    })
}

/// Refuses keys that are there, with the reason.
fn refuse<const N: usize>(
    service: Option<&str>,
    keys: [(Option<Spanned<IgnoredAny>>, &str, &str); N],
) -> Result<(), ComposeError> {
    let found = keys.into_iter().find_map(|(value, key, why)| {
        let at = service.map_or_else(|| key.to_owned(), |service| format!("{service}.{key}"));
        Some(wrong(value?.referenced.line(), &at, why))
    });
    found.map_or(Ok(()), Err)
}

fn wrong(line: u64, what: &str, why: &str) -> ComposeError {
    ComposeError::Form(format!("line {line}: {what}: {why}"))
}

fn member_of(name: &str, line: u64, service: Service) -> Result<MemberFile, ComposeError> {
    let Service {
        image,
        substrate,
        disk,
        cpus,
        mem_limit,
        environment,
        ports,
        addresses,
        command,
        healthcheck,
        depends_on,
        restart,
        volumes,
        build,
        networks,
        network_mode,
        env_file,
        entrypoint,
        secrets,
        configs,
        deploy,
        privileged,
        container_name,
    } = service;
    let files = "copy files in with `forkyard cp`, or use the TOML form's copy";
    refuse(
        Some(name),
        [
            (
                volumes,
                "volumes",
                "members have no volumes: their disks are their own",
            ),
            (
                build,
                "build",
                "build the image first, with `forkyard image build`",
            ),
            (networks, "networks", "all members are on one network"),
            (
                network_mode,
                "network_mode",
                "all members are on one network",
            ),
            (env_file, "env_file", "write the variables into environment"),
            (
                entrypoint,
                "entrypoint",
                "a member is a system that boots: command is begun in it",
            ),
            (secrets, "secrets", files),
            (configs, "configs", files),
            (
                deploy,
                "deploy",
                "cpus and mem_limit say how large a member is",
            ),
            (
                privileged,
                "privileged",
                "a member is a VM: its root is root of that alone",
            ),
            (
                container_name,
                "container_name",
                "its VM is called by the composition's name and its own",
            ),
        ],
    )?;
    if image.is_some() == substrate.is_some() {
        let why = "wanted one of image and x-substrate";
        return Err(wrong(line, name, why));
    }
    let vcpus = cpus.map(|cpus| {
        let line = cpus.referenced.line();
        let whole = cpus
            .value
            .0
            .strip_suffix(".0")
            .unwrap_or(&cpus.value.0)
            .parse();
        whole.map_err(|_| {
            let why = format!("wanted a whole number, not {}", cpus.value.0);
            wrong(line, &format!("{name}.cpus"), &why)
        })
    });
    let restart = restart.map(|restart| {
        let line = restart.referenced.line();
        // What is stopped by its user stays stopped in either case.
        let word = match restart.value.0.as_str() {
            "unless-stopped" => "always",
            word => word,
        };
        word.parse::<Restart>()
            .map_err(|error| wrong(line, &format!("{name}.restart"), &error.to_string()))
    });
    let health = match healthcheck {
        Some(Check { disable: true, .. }) | None => None,
        Some(check) => match check.test {
            Some(Test::None) => None,
            Some(Test::Command(test)) => Some(HealthFile {
                test,
                interval: check.interval.map(|it| it.0),
                timeout: check.timeout.map(|it| it.0),
                retries: check.retries,
                start: check.start_period.map(|it| it.0),
            }),
            None => {
                let why = "it has no test: tests of an image are not known here";
                return Err(wrong(line, &format!("{name}.healthcheck"), why));
            }
        },
    };
    Ok(MemberFile {
        image: image.map(|image| image.0),
        from: substrate,
        vcpus: vcpus.transpose()?,
        memory: mem_limit.map(|it| it.mib()),
        disk: disk.map(|it| it.mib()),
        env: environment.0,
        publish: {
            let addresses = addresses.into_iter().map(|own| Publish::Address(own.0));
            let ports = ports.into_iter().map(|port| port.0);
            ports.chain(addresses).collect()
        },
        copy: BTreeMap::new(),
        command: command.map(|command| command.0),
        health,
        after: depends_on.0,
        restart: restart.transpose()?.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests;
