//! Lines of a client: messages of JSON-RPC, or what is wrong with them, which the client is told.
//!
//! A request that cannot be taken is answered with its id, if that is a string or an integer; the
//! specification has null for all others.

use rmcp::{
    RoleServer,
    model::{ErrorCode, JsonRpcMessage, NumberOrString},
    service::RxJsonRpcMessage,
};
use serde_json::{Value, json};
use std::collections::HashSet;

/// Longest line.
pub const LONGEST: usize = 16 << 20;

/// Meaning of a line.
#[derive(Debug)]
pub enum Line {
    /// A message.
    Message(Box<RxJsonRpcMessage<RoleServer>>),
    /// Nothing that concerns this server.
    Nothing,
    /// Refusal, to be told.
    Wrong(Value),
}

/// Requests that have not been answered.
#[derive(Debug, Default)]
pub struct UnderWay(HashSet<NumberOrString>);

impl UnderWay {
    /// Reads a line. A request in it is under way from now on.
    pub fn read(&mut self, line: &[u8]) -> Line {
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        if line.trim_ascii().is_empty() {
            return Line::Nothing;
        }
        let Ok(text) = std::str::from_utf8(line) else {
            return not_json("the line is not UTF-8");
        };
        let Ok(message) = serde_json::from_str::<Value>(text) else {
            return not_json("the line is not JSON");
        };
        let id = message.get("id").filter(|id| is_an_id(id)).cloned();
        match self.message(message, id.as_ref()) {
            Ok(line) => line,
            Err(why) => Line::Wrong(refusal(ErrorCode::INVALID_REQUEST, &why, id)),
        }
    }

    /// Tells whether every request has been answered.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Notes that a request has been answered, or is answered no more.
    pub fn over(&mut self, id: &NumberOrString) {
        self.0.remove(id);
    }

    fn message(&mut self, message: Value, id: Option<&Value>) -> Result<Line, String> {
        let fields = match &message {
            Value::Object(fields) => fields,
            Value::Array(_) => return Err("batches are not taken: one message a line".into()),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                return Err("a message is an object".into());
            }
        };
        if fields.get("jsonrpc") != Some(&json!("2.0")) {
            return Err("`jsonrpc` has to be \"2.0\"".into());
        }
        let method = match fields.get("method") {
            Some(Value::String(method)) => Some(method.clone()),
            Some(_) => return Err("`method` has to be a string".into()),
            None if fields.contains_key("result") || fields.contains_key("error") => None,
            None => return Err("`method` is missing".into()),
        };
        if fields.contains_key("id") && id.is_none() {
            return Err("`id` has to be a string or an integer of 64 bits".into());
        }
        match fields.get("params") {
            None | Some(Value::Null | Value::Array(_) | Value::Object(_)) => {}
            Some(Value::Bool(_) | Value::Number(_) | Value::String(_)) => {
                return Err("`params` has to be an object".into());
            }
        }
        let is_request = method.is_some() && id.is_some();
        let message: RxJsonRpcMessage<RoleServer> = match serde_json::from_value(message) {
            Ok(message) => message,
            // Of another protocol, or a later version of this one.
            Err(_) if method.is_some() && !is_request => return Ok(Line::Nothing),
            Err(_) => return Err("it is no message of this protocol".into()),
        };
        if let JsonRpcMessage::Request(request) = &message
            && !self.0.insert(request.id.clone())
        {
            return Err("its `id` is that of a request under way".into());
        }
        Ok(Line::Message(Box::new(message)))
    }
}

/// Answer to a line that is too long to be read.
pub fn too_long() -> Value {
    let why = format!("the line is longer than {LONGEST} bytes");
    refusal(ErrorCode::INVALID_REQUEST, &why, None)
}

fn not_json(why: &str) -> Line {
    Line::Wrong(refusal(ErrorCode::PARSE_ERROR, why, None))
}

fn is_an_id(id: &Value) -> bool {
    id.is_string() || id.is_i64()
}

/// Answer to a request that cannot be taken.
pub fn refusal(code: ErrorCode, why: &str, id: Option<Value>) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code.0, "message": why } })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(line: &[u8]) -> (i64, Value) {
        let Line::Wrong(told) = UnderWay::default().read(line) else {
            panic!("{}", String::from_utf8_lossy(line));
        };
        let code = told["error"]["code"].as_i64().expect("a code");
        (code, told.get("id").expect("an id, be it null").clone())
    }

    #[test]
    fn what_is_wrong_is_told_with_the_id_if_there_is_one() {
        for (line, id) in [
            (r#"{"jsonrpc":"1.0","id":3,"method":"ping"}"#, json!(3)),
            (r#"{"id":"x","method":"ping"}"#, json!("x")),
            (r#"{"jsonrpc":"2.0","id":5,"method":5}"#, json!(5)),
            (
                r#"{"jsonrpc":"2.0","id":6,"method":"ping","params":5}"#,
                json!(6),
            ),
            (r#"{"jsonrpc":"2.0","id":7}"#, json!(7)),
            (r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, json!(null)),
            (
                r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#,
                json!(null),
            ),
            (
                r#"{"jsonrpc":"2.0","id":true,"method":"ping"}"#,
                json!(null),
            ),
            (
                r#"{"jsonrpc":"2.0","id":1180591620717411303424,"method":"ping"}"#,
                json!(null),
            ),
            (
                r#"{"jsonrpc":"2.0","id":18446744073709551615,"method":"ping"}"#,
                json!(null),
            ),
            (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, json!(null)),
            ("[]", json!(null)),
            ("5", json!(null)),
        ] {
            assert_eq!(wrong(line.as_bytes()), (-32600, id), "{line}");
        }
        let deep = "[".repeat(100_000);
        for line in [&b"not json"[..], b"{\"a\":\"\xff\"}", deep.as_bytes(), b"{"] {
            assert_eq!(wrong(line), (-32700, json!(null)));
        }
    }

    #[test]
    fn an_id_is_taken_once_at_a_time() {
        let mut under_way = UnderWay::default();
        let ping = br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
        assert!(matches!(under_way.read(ping), Line::Message(_)));
        assert!(matches!(under_way.read(ping), Line::Wrong(_)));
        under_way.over(&NumberOrString::Number(1));
        assert!(matches!(under_way.read(ping), Line::Message(_)));
    }

    #[test]
    fn what_is_right_passes() {
        for line in [
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
            r#"{"jsonrpc":"2.0","id":"s","method":"tools/list","params":{}}"#,
            r#"{"jsonrpc":"2.0","id":-1,"method":"no/such"}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
        ] {
            let read = UnderWay::default().read(line.as_bytes());
            assert!(matches!(read, Line::Message(_)), "{line}: {read:?}");
        }
        for line in ["", " ", "\r"] {
            let read = UnderWay::default().read(line.as_bytes());
            assert!(matches!(read, Line::Nothing), "{line}: {read:?}");
        }
    }
}
