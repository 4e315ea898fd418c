//! Our own contender: through the API, as any client.

use crate::{Options, Sample};
use anyhow::{Context, Result, bail};
use forkyard_client::Client;
use forkyard_types::{
    CloneResult, ExecEvent, ExecRequest, ExitStatus, ForkRequest, ForkResponse, RunRequest,
    VmInspect, VmView,
};
use futures::future::try_join_all;
use http_body_util::BodyExt;
use hyper::Method;
use std::time::{Duration, Instant};

/// A parent to fork.
#[derive(Debug)]
pub struct Forkyard {
    client: Client,
    name: String,
    warm: u16,
}

impl Forkyard {
    /// Boots it, with as much in its memory as wanted.
    pub async fn boot(client: &Client, name: &str, options: &Options, warm: u16) -> Result<Self> {
        let request = RunRequest {
            image: "tiny".into(),
            name: Some(name.parse()?),
            vcpus: options.vcpus,
            memory_mib: options.memory_mib,
            warm,
            kernel: None,
        };
        client.post::<VmView>("/v1/vms", &request).await?;
        let this = Self {
            client: client.clone(),
            name: name.to_owned(),
            warm,
        };
        this.exec(&this.name, &["sh", "-c", &fill(options.fill_mib)])
            .await?;
        Ok(this)
    }

    /// Pages of its memory that are its own.
    pub async fn private_pages(&self) -> Result<u64> {
        Ok(self.inspect().await?.private_pages.0)
    }

    /// One fork, and its clones' end.
    pub async fn sample(&self, contender: &'static str, clones: u16) -> Result<Sample> {
        while self.inspect().await?.warm < self.warm {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let begun = Instant::now();
        let path = format!("/v1/vms/{}/fork", self.name);
        let answer: ForkResponse = self
            .client
            .post(&path, &ForkRequest { count: clones })
            .await?;
        let names: Vec<String> = answer
            .clones
            .iter()
            .map(|clone| match clone {
                CloneResult::Vm(vm) => Ok(vm.name.to_string()),
                CloneResult::Error(error) => bail!("a clone failed: {error}"),
            })
            .collect::<Result<_>>()?;
        try_join_all(names.iter().map(|name| self.exec(name, &["hostname"]))).await?;
        let first_command = begun.elapsed();
        for name in &names {
            self.client
                .call::<VmView>(Method::DELETE, &format!("/v1/vms/{name}"))
                .await?;
        }
        let report = answer.report;
        let ms = |us: u64| Duration::from_micros(us).as_secs_f64() * 1e3;
        Ok(Sample {
            contender: contender.to_owned(),
            clones,
            running_ms: ms(report.running_us),
            first_command_ms: first_command.as_secs_f64() * 1e3,
            pause_ms: Some(ms(report.pause_us)),
        })
    }

    /// Ends the parent.
    pub async fn end(self) -> Result<()> {
        self.client
            .call::<VmView>(Method::DELETE, &format!("/v1/vms/{}", self.name))
            .await?;
        Ok(())
    }

    async fn inspect(&self) -> Result<VmInspect> {
        Ok(self
            .client
            .call(Method::GET, &format!("/v1/vms/{}/inspect", self.name))
            .await?)
    }

    async fn exec(&self, vm: &str, argv: &[&str]) -> Result<()> {
        let argv = argv.iter().map(|word| (*word).to_owned()).collect();
        let request = ExecRequest {
            argv,
            env: Vec::new(),
            stdin: None,
            timeout_s: None,
        };
        let answer = self
            .client
            .stream(&format!("/v1/vms/{vm}/exec"), &request)
            .await?;
        let said = answer.into_body().collect().await?.to_bytes();
        let last = said
            .split(|byte| *byte == b'\n')
            .rfind(|line| !line.is_empty());
        let end: ExecEvent = serde_json::from_slice(last.context("no answer")?)?;
        if end != ExecEvent::Exit(ExitStatus::Code(0)) {
            bail!("{vm}: the command failed: {end:?}");
        }
        Ok(())
    }
}

/// A script that puts random bytes into a guest's memory.
pub fn fill(mib: u64) -> String {
    format!(
        "mkdir -p /fill && mount -t tmpfs none /fill && dd if=/dev/urandom of=/fill/random bs=1M count={mib} 2>/dev/null && sync"
    )
}
