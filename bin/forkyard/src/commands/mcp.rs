//! `mcp`: VMs for agents, by the Model Context Protocol on standard input and
//! output. A client of the API as every other command is; it keeps no state,
//! and what it answers has a bound.

mod bounded;
mod guest;
mod words;

use crate::daemon;
use forkyard_client::{Client, ClientError};
use forkyard_types::{CloneResult, ForkRequest, ForkResponse, NetworkPolicy, RunRequest, VmView};
use hyper::Method;
use rmcp::{
    ServerHandler, ServiceExt, handler::server::wrapper::Parameters, tool, tool_handler,
    tool_router, transport::stdio,
};
use serde::Serialize;
use serde_json::json;
use std::{path::PathBuf, process::ExitCode};
use words::{Exec, Fork, Read, Rm, Run, Write};

/// What a tool answers: text for the agent, be it an error.
type Told = Result<String, String>;

/// Where the daemon is.
#[derive(Clone, Debug)]
pub enum Reach {
    /// On this host. It ends with the last VM, and is started again as needed.
    Here(PathBuf),
    /// Wherever it is, somebody else sees to it.
    There(Client),
}

impl Reach {
    async fn client(&self) -> anyhow::Result<Client> {
        match self {
            Self::Here(run_dir) => daemon::ensure(run_dir).await,
            Self::There(client) => Ok(client.clone()),
        }
    }
}

/// Serves until standard input ends.
pub async fn serve(reach: Reach) -> anyhow::Result<ExitCode> {
    let service = Tools { reach }.serve(stdio()).await?;
    service.waiting().await?;
    Ok(ExitCode::SUCCESS)
}

#[derive(Clone, Debug)]
struct Tools {
    reach: Reach,
}

#[tool_handler(
    name = "forkyard",
    instructions = "Virtual machines that fork. `run` boots one; bring it to the state you want with `exec` and \
        `write_file`; `fork` then makes clones of it in that very instant of memory and disk, in well under a second \
        each: try something in a clone, keep or `rm` it, and fork again. Clones are named after the first VM: p, p-1, p-2."
)]
impl ServerHandler for Tools {}

#[tool_router]
impl Tools {
    /// Boot a VM from an image. The first boot from an image builds it, which
    /// takes minutes.
    #[tool(annotations(destructive_hint = false))]
    async fn run(&self, Parameters(words): Parameters<Run>) -> Told {
        let request = RunRequest {
            name: match words.name.map(|name| name.parse()) {
                Some(name) => Some(name.map_err(|error| told(&error))?),
                None => None,
            },
            image: words.image,
            vcpus: words.vcpus.unwrap_or(1),
            memory_mib: words.memory_mib.unwrap_or(256),
            warm: 0,
            kernel: None,
            max_clones: None,
            secrets: Vec::new(),
            network: NetworkPolicy::default(),
        };
        let vm: VmView = self.post("/v1/vms", &request).await?;
        text(&brief(&vm))
    }

    /// Run a command in a VM and wait for its end. Answers with its exit code
    /// and what it wrote; of long output the middle is left out.
    #[tool]
    async fn exec(&self, Parameters(words): Parameters<Exec>) -> Told {
        let ran = guest::exec(&self.client().await?, words).await;
        text(&ran.map_err(|error| told(&error))?)
    }

    /// Fork a running VM into clones: each goes on from the same instant of
    /// memory and disk, with a name and an address of its own. The VM itself
    /// goes on, too.
    #[tool(annotations(destructive_hint = false))]
    async fn fork(&self, Parameters(words): Parameters<Fork>) -> Told {
        let path = path(&words.vm, "/fork")?;
        let count = words.count.unwrap_or(1);
        let answer: ForkResponse = self
            .post(
                &path,
                &ForkRequest {
                    count,
                    ..ForkRequest::default()
                },
            )
            .await?;
        let clones: Vec<_> = answer
            .clones
            .iter()
            .map(|clone| match clone {
                CloneResult::Vm(vm) => brief(vm),
                CloneResult::Error(error) => json!({ "error": error }),
            })
            .collect();
        let report = answer.report;
        text(&json!({
            "clones": clones,
            "ready_ms": report.ready_us / 1000,
            "parent_paused_ms": report.pause_us / 1000,
        }))
    }

    /// List the VMs.
    #[tool(annotations(read_only_hint = true))]
    async fn ls(&self) -> Told {
        let vms: Vec<VmView> = self.call(Method::GET, "/v1/vms").await?;
        text(&vms.iter().map(brief).collect::<Vec<_>>())
    }

    /// End a VM and remove its memory and disk. Its clones go on.
    #[tool(annotations(destructive_hint = true))]
    async fn rm(&self, Parameters(words): Parameters<Rm>) -> Told {
        let vm: VmView = self.call(Method::DELETE, &path(&words.vm, "")?).await?;
        text(&json!({ "removed": vm.name }))
    }

    /// Read a file in a VM, or a part of it: as text where it is UTF-8, as
    /// base64 where it is not.
    #[tool(annotations(read_only_hint = true))]
    async fn read_file(&self, Parameters(words): Parameters<Read>) -> Told {
        let content = guest::read_file(&self.client().await?, words).await;
        text(&content.map_err(|error| told(&error))?)
    }

    /// Write a file in a VM, whole: one that is there is replaced, folders that
    /// are missing are made.
    #[tool(annotations(destructive_hint = true))]
    async fn write_file(&self, Parameters(words): Parameters<Write>) -> Told {
        let written = guest::write_file(&self.client().await?, words).await;
        text(&written.map_err(|error| told(&error))?)
    }
}

impl Tools {
    async fn client(&self) -> Result<Client, String> {
        self.reach.client().await.map_err(|e| format!("{e:#}"))
    }

    async fn call<A: serde::de::DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
    ) -> Result<A, String> {
        let answer = self.client().await?.call(method, path).await;
        answer.map_err(refused)
    }

    async fn post<A: serde::de::DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<A, String> {
        let answer = self.client().await?.post(path, body).await;
        answer.map_err(refused)
    }
}

/// A VM's part of the API. What an agent takes for a name must not become
/// another path.
fn path(vm: &str, rest: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    match !vm.is_empty() && vm.bytes().all(plain) {
        true => Ok(format!("/v1/vms/{vm}{rest}")),
        false => Err(format!("{vm:?} is no name of a VM")),
    }
}

/// What an agent needs to know of a VM.
fn brief(vm: &VmView) -> serde_json::Value {
    json!({
        "name": vm.name,
        "state": vm.state,
        "image": vm.image,
        "address": vm.address.ip,
        "vcpus": vm.vcpus,
        "memory_mib": vm.memory.0 >> 20,
        "clone_of": vm.parent,
        "id": vm.id,
    })
}

fn text(value: &impl Serialize) -> Told {
    serde_json::to_string(value).map_err(|error| told(&error))
}

fn refused(error: ClientError) -> String {
    match error.hint() {
        Some(hint) => format!("{}; {hint}", told(&error)),
        None => told(&error),
    }
}

fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_name_reaches_no_other_path() {
        assert_eq!(path("p-1", "/fork"), Ok("/v1/vms/p-1/fork".into()));
        for vm in ["", "..", "../doctor", "p/stop", "p?x", "p%2f"] {
            assert!(path(vm, "").is_err(), "{vm}");
        }
    }

    #[test]
    fn every_tool_is_described_to_the_last_word() {
        let tools = Tools::tool_router().list_all();
        let names: Vec<_> = tools.iter().map(|tool| tool.name.as_ref()).collect();
        let wanted = ["exec", "fork", "ls", "read_file", "rm", "run", "write_file"];
        assert_eq!(names, wanted);
        for tool in tools {
            assert!(tool.description.is_some_and(|text| text.len() > 10));
            let words = tool.input_schema.get("properties").cloned();
            for (name, word) in words
                .as_ref()
                .and_then(|it| it.as_object())
                .into_iter()
                .flatten()
            {
                assert!(word["description"].is_string(), "{}: {name}", tool.name);
            }
        }
    }
}
