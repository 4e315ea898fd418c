//! `mcp`: VMs for agents, by the Model Context Protocol on standard input and
//! output. A client of the API as every other command is; it keeps no state,
//! and what it answers has a bound.

mod arguments;
mod bounded;
mod guest;
mod lines;
mod progress;
mod sessions;
mod transport;
mod words;

use crate::{commands::progress::Watched, daemon};
use arguments::Parameters;
use forkyard_api_client::{Client, escaped, of_vm};
use forkyard_types::{
    ActivateResponse, ByteCount, CloneResult, ForkRequest, ForkResponse, NetworkPolicy, RequestId,
    RunRequest, VmId, VmView,
};
use guest::GuestError;
use hyper::Method;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use progress::Said;
use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt,
    handler::server::{common::Extension, tool::ToolCallContext},
    model::{
        CallToolRequestMethod, CallToolRequestParams, CallToolResponse, CallToolResult,
        ConstString as _, ContentBlock, CustomRequest, CustomResult, ErrorCode,
    },
    service::{RequestContext, ServerInitializeError},
    tool, tool_handler, tool_router,
    transport::stdio,
};
use serde::Serialize;
use serde_json::json;
use std::{os::fd::AsFd, path::PathBuf, process::ExitCode};
use transport::Lines;
use words::{
    Activate, Exec, Fork, Read, Rm, Run, SessionEnd, SessionRead, SessionWrite, Sessions, Start,
    Write,
};

/// Tools that leave nothing half done when they are given up: a command is hung up on,
/// and a file is written whole or not at all.
const GIVEN_UP: [&str; 6] = [
    "exec",
    "ls",
    "read_file",
    "session_read",
    "sessions",
    "write_file",
];

/// Tells whether a call may be dropped halfway. A command in the background would go on, and its
/// caller would not know of it: it is ended once it has begun.
fn may_be_dropped(call: &CallToolRequestParams) -> bool {
    let background = call
        .arguments
        .as_ref()
        .and_then(|all| all.get("background"));
    GIVEN_UP.contains(&call.name.as_ref()) && background.is_none_or(|it| *it == false)
}

/// Answer of a tool: text for the agent, be it an error.
type Told = Result<String, String>;

/// Place of the daemon.
#[derive(Clone, Debug)]
pub enum Reach {
    /// On this host. It ends with the last VM, and is started again as needed.
    Here(PathBuf),
    /// Wherever it is, another request handles it.
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

/// Serves until standard input ends and all is answered, or until standard output has no reader.
pub async fn serve(reach: Reach) -> anyhow::Result<ExitCode> {
    let (from, to) = stdio();
    let lines = Lines::new(from, to, is_unread);
    let service = match (Tools { reach }).serve(lines).await {
        Ok(service) => service,
        // A client that went away before it had begun.
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(ExitCode::SUCCESS),
        Err(error) => return Err(error.into()),
    };
    service.waiting().await?;
    Ok(ExitCode::SUCCESS)
}

/// Tells whether the reader of standard output has gone.
fn is_unread() -> bool {
    let output = std::io::stdout();
    let mut looked = [PollFd::new(output.as_fd(), PollFlags::empty())];
    let gone = PollFlags::POLLERR | PollFlags::POLLHUP;
    poll(&mut looked, PollTimeout::ZERO).is_ok()
        && looked[0].revents().is_some_and(|it| it.intersects(gone))
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
impl ServerHandler for Tools {
    /// Calls a tool; tells how far it is, and gives it up if the caller cancels.
    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        mut context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let name = request.name.clone();
        let router = Self::tool_router();
        if router.get(&name).is_none() {
            let text = format!("there is no tool {}: `tools/list` lists them", cut(&name));
            return Err(ErrorData::invalid_params(text, None));
        }
        let may_be_dropped = may_be_dropped(&request);
        let said = Said::default();
        context.extensions.insert(said.clone());
        let (peer, cancelled) = (context.peer.clone(), context.ct.clone());
        let token = context.meta.get_progress_token();
        let answer = tokio::select! {
            biased;
            answer = router.call(ToolCallContext::new(self, request, context)) => answer,
            () = cancelled.cancelled(), if may_be_dropped => {
                Err(ErrorData::internal_error("cancelled", None))
            }
            never = progress::tell(&peer, token, &said) => match never {},
        };
        match answer {
            // The model that chose the arguments is to see what is wrong with them.
            Err(error) if error.code == ErrorCode::INVALID_PARAMS => {
                Ok(CallToolResult::error(vec![ContentBlock::text(error.message)]).into())
            }
            answer => answer,
        }
    }

    /// Answers requests that are in no form the protocol knows: those of a method that there is are
    /// told that their parameters are wrong.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let CustomRequest { method, .. } = request;
        match method == CallToolRequestMethod::VALUE {
            true => Err(ErrorData::invalid_params(
                "the parameters are wrong: `name` has to be a tool's name, and `arguments` an object",
                None,
            )),
            false => {
                let text = format!("there is no method {}", cut(&method));
                Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, text, None))
            }
        }
    }
}

#[tool_router]
impl Tools {
    /// Boot a VM from an image. The first boot from an image builds it, which
    /// takes minutes.
    #[tool(annotations(destructive_hint = false))]
    async fn run(
        &self,
        Parameters(words): Parameters<Run>,
        context: RequestContext<RoleServer>,
    ) -> Told {
        let request = RunRequest {
            name: match words.name.map(|name| name.parse()) {
                Some(name) => Some(name.map_err(|error| told(&error))?),
                None => None,
            },
            image: words.image,
            vcpus: words.vcpus.map_or(1, |it| it.as_a()),
            memory: words.memory.map(|it| ByteCount(it.as_a())),
            memory_mib: words.memory_mib.map(|it| it.as_a()),
            warm: 0,
            kernel: None,
            max_clones: None,
            secrets: Vec::new(),
            network: NetworkPolicy::default(),
            volume: None,
            data: Vec::new(),
            cold: false,
            labels: forkyard_types::Labels::default(),
            env: std::collections::BTreeMap::new(),
            lifetime: None,
            idle: None,
            restart: forkyard_types::Restart::No,
            cpu_baseline: Vec::new(),
            join: None,
        };
        let vm: VmView = self.post("/v1/vms", &request).await?;
        if context.ct.is_cancelled() {
            return self.undo(vec![vm.id]).await;
        }
        text(&brief(&vm))
    }

    /// Run a command in a VM and wait for its end. Answers with its exit code
    /// and what it wrote; of long output the middle is left out. Or start one in
    /// the background, which answers with its session.
    #[tool]
    async fn exec(
        &self,
        Parameters(words): Parameters<Exec>,
        Extension(said): Extension<Said>,
        context: RequestContext<RoleServer>,
    ) -> Told {
        let client = self.client().await?;
        if words.background != Some(true) {
            let ran = guest::exec(&client, words, &said).await;
            return text(&ran.map_err(refused)?);
        }
        if words.timeout_s.is_some() {
            return Err(
                "timeout_s: a command in the background has none; `session_end` ends it".into(),
            );
        }
        let vm = words.vm.clone();
        let started = sessions::start(&client, words).await;
        let pid = started.map_err(refused)?;
        if context.ct.is_cancelled() {
            sessions::undo(&client, &vm, pid).await.map_err(refused)?;
            return Err("cancelled: the command has been ended".to_owned());
        }
        text(&json!({ "pid": pid }))
    }

    /// List the commands in the background of a VM: those that run, and the last that
    /// ended.
    #[tool(annotations(read_only_hint = true))]
    async fn sessions(&self, Parameters(words): Parameters<Sessions>) -> Told {
        let listed = sessions::list(&self.client().await?, &words.vm).await;
        text(&listed.map_err(refused)?)
    }

    /// Read what a command in the background has written, and whether it has ended.
    /// The last 128 KiB are kept; `missed` counts bytes that were not read in time.
    #[tool(annotations(read_only_hint = true))]
    async fn session_read(&self, Parameters(words): Parameters<SessionRead>) -> Told {
        let read = sessions::read(&self.client().await?, words).await;
        text(&read.map_err(refused)?)
    }

    /// Write to the standard input of a command in the background.
    #[tool(annotations(destructive_hint = false))]
    async fn session_write(&self, Parameters(words): Parameters<SessionWrite>) -> Told {
        let written = sessions::type_in(&self.client().await?, words).await;
        text(&written.map_err(refused)?)
    }

    /// End a command in the background and all that it started, or send it another
    /// signal.
    #[tool(annotations(destructive_hint = true))]
    async fn session_end(&self, Parameters(words): Parameters<SessionEnd>) -> Told {
        let ended = sessions::end(&self.client().await?, words).await;
        text(&ended.map_err(refused)?)
    }

    /// Fork a running VM into clones: each goes on from the same instant of
    /// memory and disk, with a name and an address of its own. The VM itself
    /// goes on, too.
    #[tool(annotations(destructive_hint = false))]
    async fn fork(
        &self,
        Parameters(words): Parameters<Fork>,
        Extension(said): Extension<Said>,
        context: RequestContext<RoleServer>,
    ) -> Told {
        let client = self.client().await?;
        let (vm, watch) = (words.vm.as_str(), RequestId::random());
        let request = ForkRequest {
            count: words.count.map_or(1, |it| it.as_a()),
            watch: Some(watch),
            ..ForkRequest::default()
        };
        let path = of_vm(vm, "fork");
        let what = Watched::Fork(vm);
        let see = |fork: &_| said.say(&super::progress::text(what, fork));
        let work = client.post::<ForkResponse>(&path, &request);
        let done = super::progress::watched(&client, what, watch, see, work).await;
        let answer = done.map_err(refused)?;
        if context.ct.is_cancelled() {
            return self.undo(made(&answer.clones)).await;
        }
        let clones: Vec<_> = answer.clones.iter().map(brief_or_why).collect();
        let report = answer.report;
        text(&json!({
            "clones": clones,
            "ready_us": report.ready_us,
            "pause_us": report.pause_us,
        }))
    }

    /// Wake VMs of a substrate, a VM that was stored small: each is independent, with a network of its own. They
    /// can be made on other hosts.
    #[tool(annotations(destructive_hint = false))]
    async fn activate(
        &self,
        Parameters(words): Parameters<Activate>,
        Extension(said): Extension<Said>,
        context: RequestContext<RoleServer>,
    ) -> Told {
        let (client, watch) = (self.client().await?, RequestId::random());
        let path = format!("/v1/substrates/{}/activate", escaped(&words.substrate));
        let request = json!({
            "count": words.count.map_or(1u16, |it| it.as_a()),
            "name": words.name,
            "to": words.to.unwrap_or_default(),
            "spread": words.spread.unwrap_or_default(),
            "watch": watch,
        });
        let what = Watched::Activation(&words.substrate);
        let see = |made: &_| said.say(&super::progress::text(what, made));
        let work = client.post::<ActivateResponse>(&path, &request);
        let done = super::progress::watched(&client, what, watch, see, work).await;
        let answer = done.map_err(refused)?;
        if context.ct.is_cancelled() {
            return self.undo(made(&answer.vms)).await;
        }
        let vms: Vec<_> = answer.vms.iter().map(brief_or_why).collect();
        text(&json!({ "vms": vms, "ready_us": answer.ready_us }))
    }

    /// List the VMs.
    #[tool(annotations(read_only_hint = true))]
    async fn ls(&self) -> Told {
        let vms: Vec<VmView> = self.call(Method::GET, "/v1/vms").await?;
        text(&vms.iter().map(brief).collect::<Vec<_>>())
    }

    /// Boot a VM again that has stopped, from its own disk: what it had in memory is
    /// gone. Not a clone.
    #[tool(annotations(destructive_hint = false))]
    async fn start(&self, Parameters(words): Parameters<Start>) -> Told {
        let path = of_vm(&words.vm, "start");
        let vm: VmView = self.call(Method::POST, &path).await?;
        text(&brief(&vm))
    }

    /// End a VM and remove its memory and disk. Its clones go on.
    #[tool(annotations(destructive_hint = true))]
    async fn rm(&self, Parameters(words): Parameters<Rm>) -> Told {
        let vm: VmView = self.call(Method::DELETE, &of_vm(&words.vm, "")).await?;
        text(&json!({ "removed": vm.name }))
    }

    /// Read a file in a VM, or a part of it: as text where it is UTF-8, as
    /// base64 where it is not.
    #[tool(annotations(read_only_hint = true))]
    async fn read_file(&self, Parameters(words): Parameters<Read>) -> Told {
        let content = guest::read_file(&self.client().await?, words).await;
        text(&content.map_err(refused)?)
    }

    /// Write a file in a VM, whole: one that is there is replaced, folders that
    /// are missing are made.
    #[tool(annotations(destructive_hint = true))]
    async fn write_file(&self, Parameters(words): Parameters<Write>) -> Told {
        let written = guest::write_file(&self.client().await?, words).await;
        text(&written.map_err(refused)?)
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

    /// Removes the VMs that a cancelled call has made.
    async fn undo(&self, made: Vec<VmId>) -> Told {
        for vm in made {
            let path = of_vm(&vm.to_string(), "");
            let _: VmView = self.call(Method::DELETE, &path).await?;
        }
        Err("cancelled: what it made has been removed".to_owned())
    }
}

/// A VM that was made, as far as an agent needs it, or why there is none.
fn brief_or_why(made: &CloneResult) -> serde_json::Value {
    match made {
        CloneResult::Vm(vm) => brief(vm),
        CloneResult::Error(error) => json!({ "error": error }),
    }
}

/// The VMs that were made.
fn made(all: &[CloneResult]) -> Vec<VmId> {
    let vm = |clone: &CloneResult| match clone {
        CloneResult::Vm(vm) => Some(vm.id),
        CloneResult::Error(_) => None,
    };
    all.iter().filter_map(vm).collect()
}

/// Describes a VM as far as an agent needs it.
fn brief(vm: &VmView) -> serde_json::Value {
    json!({
        "name": vm.name,
        "state": vm.state,
        "image": vm.image,
        "ip": vm.address.ip,
        "vcpus": vm.vcpus,
        "memory": vm.memory,
        "parent": vm.parent,
        "id": vm.id,
    })
}

fn text(value: &impl Serialize) -> Told {
    serde_json::to_string(value).map_err(|error| told(&error))
}

fn refused(error: impl Into<GuestError>) -> String {
    let error = error.into();
    match error.hint() {
        Some(hint) => format!("{}; {hint}", told(&error)),
        None => told(&error),
    }
}

/// Quotes a name that may be of any length, and any text.
fn cut(name: &str) -> String {
    const MOST: usize = 60;
    match name.char_indices().nth(MOST) {
        Some((at, _)) => format!("{:?}…", &name[..at]),
        None => format!("{name:?}"),
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
mod tests;
