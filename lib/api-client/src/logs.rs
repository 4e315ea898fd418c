//! A guest's serial console: what it says, as it comes, and what is typed.

use crate::{Client, ClientError, of_vm};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::{Method, Response, body::Incoming};

/// A console that is listened to.
#[derive(Debug)]
pub struct Logs {
    body: Incoming,
    client: Client,
}

impl Client {
    /// Reads the console output of a VM's guest, and with `follow` further
    /// output until it ends.
    pub async fn logs(&self, vm: &str, follow: bool) -> Result<Logs, ClientError> {
        let path = format!("{}?follow={follow}", of_vm(vm, "logs"));
        let answer = self.open(Method::GET, &path, Bytes::new()).await?;
        Ok(self.listening(answer))
    }

    /// Follows the console output of a VM's guest from now on.
    pub async fn listen(&self, vm: &str) -> Result<Logs, ClientError> {
        let path = of_vm(vm, "logs") + "?follow=true&history=false";
        let answer = self.open(Method::GET, &path, Bytes::new()).await?;
        Ok(self.listening(answer))
    }

    fn listening(&self, answer: Response<Incoming>) -> Logs {
        Logs {
            body: answer.into_body(),
            client: self.clone(),
        }
    }

    /// Types on a VM's console; waits while its guest does not read.
    pub async fn type_in(&self, vm: &str, typed: Bytes) -> Result<(), ClientError> {
        let path = of_vm(vm, "console");
        self.open(Method::POST, &path, typed).await.map(drop)
    }
}

impl Logs {
    /// The next bytes; none at the end. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        let body = &mut self.body;
        let next = async {
            while let Some(frame) = body.frame().await {
                if let Ok(piece) = frame?.into_data() {
                    return Ok(Some(piece));
                }
            }
            Ok(None)
        };
        self.client.attend(next).await
    }
}
