//! Arguments of tools: parsing and schemas.
//!
//! Models say `5`, `5.0` and `"5"`; all of them are read. What cannot be read is refused with the
//! argument's name and what is wanted. Schemas are plain JSON Schema 2020-12: clients
//! refuse or complain of formats, types and references that they do not know.

use forkyard_types::plainly;
use rmcp::{
    ErrorData,
    handler::server::{common::FromContextPart, tool::ToolCallContext},
    schemars::{JsonSchema, Schema, SchemaGenerator, json_schema},
};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error},
};
use serde_json::Value;
use std::borrow::Cow;

/// Arguments of a tool.
#[derive(Debug)]
pub struct Parameters<T>(pub T);

impl<S, T: DeserializeOwned> FromContextPart<ToolCallContext<'_, S>> for Parameters<T> {
    fn from_context_part(context: &mut ToolCallContext<S>) -> Result<Self, ErrorData> {
        let said = Value::Object(context.arguments.take().unwrap_or_default());
        read(said)
            .map(Self)
            .map_err(|error| ErrorData::invalid_params(error, None))
    }
}

/// Reads arguments; an error names the argument that is wrong.
fn read<T: DeserializeOwned>(said: Value) -> Result<T, String> {
    serde_path_to_error::deserialize(said).map_err(|error| plainly(&error.to_string()))
}

impl<T: JsonSchema> JsonSchema for Parameters<T> {
    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = T::json_schema(generator);
        if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
            properties.values_mut().for_each(no_null);
        }
        schema
    }
}

/// An argument that may be left out need not be said to be `null` instead.
fn no_null(argument: &mut Value) {
    let null = Value::from("null");
    if argument.get("default") == Some(&Value::Null)
        && let Some(argument) = argument.as_object_mut()
    {
        argument.remove("default");
    }
    if let Some(kinds) = argument.get_mut("type") {
        let one = kinds.as_array_mut().and_then(|kinds| {
            kinds.retain(|kind| *kind != null);
            (kinds.len() == 1).then(|| kinds.remove(0))
        });
        if let Some(one) = one {
            *kinds = one;
        }
    }
    if let Some(values) = argument.get_mut("enum").and_then(Value::as_array_mut) {
        values.retain(|value| !value.is_null());
    }
}

/// A whole number from MIN to MAX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole<const MIN: u64, const MAX: u64>(u64);

impl<const MIN: u64, const MAX: u64> Whole<MIN, MAX> {
    /// Converts it to a type that holds all from MIN to MAX.
    pub fn as_a<T: TryFrom<u64> + Default>(self) -> T {
        T::try_from(self.0).unwrap_or_default()
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Whole<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let said = Value::deserialize(deserializer)?;
        let text = said
            .as_str()
            .map_or_else(|| said.to_string(), str::to_owned);
        let number = whole(text.trim()).filter(|number| (MIN..=MAX).contains(number));
        number.map(Self).ok_or_else(|| {
            D::Error::custom(format!(
                "wanted a whole number from {MIN} to {MAX}, not {said}"
            ))
        })
    }
}

fn whole(text: &str) -> Option<u64> {
    // A float without a fraction is written without one.
    let float = || text.parse::<f64>().ok()?.to_string().parse().ok();
    text.parse().ok().or_else(float)
}

impl<const MIN: u64, const MAX: u64> JsonSchema for Whole<MIN, MAX> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Whole{MIN}To{MAX}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": MIN, "maximum": MAX })
    }
}

/// Encoding of a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    /// As it is.
    Text,
    /// Base64.
    Base64,
}

impl JsonSchema for Encoding {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Encoding".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": ["text", "base64"] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::mcp::words::Exec;
    use serde_json::json;

    type Tens = Whole<10, 600>;

    #[test]
    fn whole_numbers_are_read_however_a_model_says_them() {
        for said in [
            json!(10),
            json!(10.0),
            json!("10"),
            json!(" 1e1 "),
            json!("10.0"),
        ] {
            assert_eq!(read::<Tens>(said.clone()), Ok(Whole(10)), "{said}");
        }
        for said in [
            json!(9),
            json!(601),
            json!(-10),
            json!(10.5),
            json!("ten"),
            json!(""),
            json!(true),
            json!([10]),
            json!(1e300),
            json!("NaN"),
        ] {
            let error = read::<Tens>(said.clone()).expect_err("not one");
            let wanted = format!("wanted a whole number from 10 to 600, not {said}");
            assert_eq!(error, wanted);
        }
    }

    #[test]
    fn an_argument_that_is_wrong_is_named() {
        let said = json!({ "vm": "p", "argv": ["true"], "timeout_s": 0 });
        let error = read::<Exec>(said).expect_err("no time at all");
        assert_eq!(
            error,
            "timeout_s: wanted a whole number from 1 to 600, not 0"
        );
        let error = read::<Exec>(json!({ "vm": "p", "argv": [7] })).expect_err("no word");
        assert!(error.starts_with("argv[0]: "), "{error}");
        let error = read::<Exec>(json!({ "vm": "p" })).expect_err("no command");
        assert_eq!(error, "`argv` is missing");
    }
}
