//! Transactions: a comparison of keys with what they are believed to be, and
//! what is done if it holds, or else.

use crate::{
    EtcdError, KeyEntry, Keys, LeaseId, Revision,
    wire::{Answered, Bounds, Bytes, Header, Put},
};
use serde::{Deserialize, Serialize, de::IgnoredAny};

/// Condition on a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// There are no such keys.
    Absent(Keys),
    /// There is one.
    Present(String),
    /// The key was last put at this revision; 0 if there is none.
    Unchanged(String, Revision),
}

/// Something that is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Put a value, which goes with the lease if there is one.
    Put(String, Vec<u8>, Option<LeaseId>),
    /// Look.
    Get(Keys),
    /// Remove.
    Delete(Keys),
}

/// A transaction. etcd takes 128 steps in one, if it is not told otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// All of this must hold,
    pub when: Vec<Compare>,
    /// for this to be done;
    pub then: Vec<Op>,
    /// if not, this is.
    pub otherwise: Vec<Op>,
}

/// Result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpResult {
    /// The step was carried out.
    Done,
    /// These keys were there.
    Found(Vec<KeyEntry>),
}

/// Result of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxnOutcome {
    /// True if the comparison held.
    pub held: bool,
    /// The store's revision then.
    pub revision: Revision,
    /// One answer a step.
    pub answers: Vec<OpResult>,
}

impl TxnOutcome {
    /// Returns the entries each look found, in order.
    pub fn found(self) -> Vec<Vec<KeyEntry>> {
        let found = self.answers.into_iter().filter_map(|answer| match answer {
            OpResult::Found(entries) => Some(entries),
            OpResult::Done => None,
        });
        found.collect()
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Request {
    compare: Vec<Comparison>,
    success: Vec<Step>,
    failure: Vec<Step>,
}

#[derive(Debug, Serialize)]
struct Comparison {
    #[serde(flatten)]
    keys: Bounds,
    result: &'static str,
    target: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    create_revision: Option<Revision>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mod_revision: Option<Revision>,
}

#[derive(Debug, Serialize)]
enum Step {
    #[serde(rename = "request_put")]
    Put(Put),
    #[serde(rename = "request_range")]
    Range(Bounds),
    #[serde(rename = "request_delete_range")]
    Delete(Bounds),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Response {
    header: Header,
    succeeded: bool,
    responses: Vec<StepResponse>,
}

#[derive(Debug, Deserialize)]
enum StepResponse {
    #[serde(rename = "response_put")]
    Put(IgnoredAny),
    #[serde(rename = "response_range")]
    Range(Answered),
    #[serde(rename = "response_delete_range")]
    Delete(IgnoredAny),
}

impl From<Txn> for Request {
    fn from(txn: Txn) -> Self {
        let steps = |ops: Vec<Op>| ops.into_iter().map(Step::from).collect();
        Self {
            compare: txn.when.into_iter().map(Comparison::from).collect(),
            success: steps(txn.then),
            failure: steps(txn.otherwise),
        }
    }
}

impl From<Compare> for Comparison {
    fn from(compare: Compare) -> Self {
        let (keys, result, target, created, changed) = match compare {
            // Of keys that are not there etcd says that they were created at 0.
            Compare::Absent(keys) => (keys, "EQUAL", "CREATE", Some(Revision(0)), None),
            Compare::Present(key) => (Keys::One(key), "GREATER", "CREATE", Some(Revision(0)), None),
            Compare::Unchanged(key, at) => (Keys::One(key), "EQUAL", "MOD", None, Some(at)),
        };
        Self {
            keys: keys.bounds(),
            result,
            target,
            create_revision: created,
            mod_revision: changed,
        }
    }
}

impl From<Op> for Step {
    fn from(op: Op) -> Self {
        match op {
            Op::Put(key, value, lease) => Self::Put(Put {
                key: Bytes(key.into()),
                value: Bytes(value),
                lease,
            }),
            Op::Get(keys) => Self::Range(keys.bounds()),
            Op::Delete(keys) => Self::Delete(keys.bounds()),
        }
    }
}

impl TryFrom<Response> for TxnOutcome {
    type Error = EtcdError;

    fn try_from(response: Response) -> Result<Self, EtcdError> {
        let answer = |step| match step {
            StepResponse::Range(range) => Answered::entries(range).map(OpResult::Found),
            StepResponse::Put(_) | StepResponse::Delete(_) => Ok(OpResult::Done),
        };
        let answers: Result<_, _> = response.responses.into_iter().map(answer).collect();
        Ok(Self {
            held: response.succeeded,
            revision: response.header.revision,
            answers: answers?,
        })
    }
}
