//! Values of a compose file in the forms that they can be written in.

use forkyard_types::{OwnAddress, Publish};
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use std::{collections::BTreeMap, fmt, time::Duration};

/// Text as it is written. Elsewhere `$NAME` and `${NAME}` would be replaced: they are refused, and
/// `$$` is a `$`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Text(pub String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        plain(&text).map(Self).map_err(Error::custom)
    }
}

fn plain(text: &str) -> Result<String, String> {
    let mut plain = String::new();
    let mut rest = text.chars().peekable();
    while let Some(letter) = rest.next() {
        let next = rest.peek().copied();
        match (letter, next) {
            ('$', Some('$')) => {
                rest.next();
                plain.push('$');
            }
            ('$', Some(next)) if next == '{' || next == '_' || next.is_ascii_alphabetic() => {
                return Err(format!(
                    "{text:?} has a variable, and none is replaced here: write its value, or $$ for $"
                ));
            }
            _ => plain.push(letter),
        }
    }
    Ok(plain)
}

/// Variables, as a map or as a list of `NAME=VALUE`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Environment(pub BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Environment {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Variables)
    }
}

struct Variables;

impl<'de> Visitor<'de> for Variables {
    type Value = Environment;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of variables, or a list of NAME=VALUE")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Environment, A::Error> {
        let mut all = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            let value = map.next_value::<Option<Text>>()?;
            let value = value.ok_or_else(|| from_outside(&name))?;
            all.insert(name, value.0);
        }
        Ok(Environment(all))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Environment, A::Error> {
        let mut all = BTreeMap::new();
        while let Some(Text(word)) = list.next_element()? {
            let (name, value) = word.split_once('=').ok_or_else(|| from_outside(&word))?;
            all.insert(name.to_owned(), value.to_owned());
        }
        Ok(Environment(all))
    }
}

fn from_outside<E: Error>(name: &str) -> E {
    E::custom(format!(
        "{name} has no value: none is taken from the environment here"
    ))
}

/// A command, as its words or as a line for the shell.
#[derive(Debug, PartialEq, Eq)]
pub struct Command(pub Vec<String>);

impl<'de> Deserialize<'de> for Command {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let words = match Words::deserialize(from)? {
            Words::Line(line) => of_shell(line),
            Words::List(words) => words,
        };
        Ok(Self(words))
    }
}

/// A test.
#[derive(Debug, PartialEq, Eq)]
pub enum Test {
    /// None, whatever the image has.
    None,
    /// This command.
    Command(Vec<String>),
}

impl<'de> Deserialize<'de> for Test {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let words = match Words::deserialize(from)? {
            Words::Line(line) => return Ok(Self::Command(of_shell(line))),
            Words::List(words) => words,
        };
        match words.split_first() {
            Some((first, [])) if first == "NONE" => Ok(Self::None),
            Some((first, rest)) if first == "CMD" => Ok(Self::Command(rest.to_vec())),
            Some((first, [line])) if first == "CMD-SHELL" => {
                Ok(Self::Command(of_shell(line.clone())))
            }
            Some(_) | None => Err(Error::custom(
                "a test begins with CMD and its words, CMD-SHELL and one line, or is NONE",
            )),
        }
    }
}

fn of_shell(line: String) -> Vec<String> {
    vec!["sh".into(), "-c".into(), line]
}

/// One word, or several.
enum Words {
    Line(String),
    List(Vec<String>),
}

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(WordsVisitor)
    }
}

struct WordsVisitor;

impl<'de> Visitor<'de> for WordsVisitor {
    type Value = Words;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text or a list of words")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Words, E> {
        plain(text).map(Words::Line).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Words, A::Error> {
        let mut words = Vec::new();
        while let Some(Text(word)) = list.next_element()? {
            words.push(word);
        }
        Ok(Words::List(words))
    }
}

/// Services that one waits for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DependsOn(pub Vec<String>);

impl<'de> Deserialize<'de> for DependsOn {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Services)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Waits {
    condition: Condition,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Condition {
    ServiceStarted,
    ServiceHealthy,
}

struct Services;

impl<'de> Visitor<'de> for Services {
    type Value = DependsOn;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of services, or a map of services and conditions")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<DependsOn, A::Error> {
        let mut all = Vec::new();
        while let Some((service, waits)) = map.next_entry::<String, Waits>()? {
            // A service without a test is healthy once it has started.
            match waits.condition {
                Condition::ServiceStarted | Condition::ServiceHealthy => all.push(service),
            }
        }
        Ok(DependsOn(all))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<DependsOn, A::Error> {
        let mut all = Vec::new();
        while let Some(service) = list.next_element()? {
            all.push(service);
        }
        Ok(DependsOn(all))
    }
}

/// A port of the host that leads to a service.
#[derive(Debug, PartialEq, Eq)]
pub struct Port(pub Publish);

/// An address of a service's own.
#[derive(Debug, PartialEq, Eq)]
pub struct Address(pub OwnAddress);

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let Text(text) = Text::deserialize(from)?;
        let own = text.parse().ok().and_then(Publish::own_address);
        own.map(Self).ok_or_else(|| {
            Error::custom(format!(
                "{text:?}: wanted ADDRESS/routed or ADDRESS/bridge, of an address that one machine may have"
            ))
        })
    }
}

/// A port in its long form.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LongPort {
    target: u16,
    published: Text,
    #[serde(default)]
    host_ip: Option<Text>,
    #[serde(default)]
    protocol: Option<Text>,
}

impl<'de> Deserialize<'de> for Port {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Ports)
    }
}

struct Ports;

impl<'de> Visitor<'de> for Ports {
    type Value = Port;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[ADDRESS:]PORT:GUESTPORT, or target and published")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Port, E> {
        let text = plain(text).map_err(E::custom)?;
        match text.parse() {
            Ok(Publish::Address(own)) => Err(E::custom(format!(
                "{own} is an address of its own: write it into x-addresses"
            ))),
            Ok(port @ Publish::Port(_)) => Ok(Port(port)),
            Err(error) => Err(E::custom(format!(
                "{error}; ranges and ports that are drawn are not had here"
            ))),
        }
    }

    fn visit_u64<E: Error>(self, port: u64) -> Result<Port, E> {
        Err(E::custom(format!(
            "{port} names no port of the host: write \"PORT:{port}\""
        )))
    }

    fn visit_i64<E: Error>(self, port: i64) -> Result<Port, E> {
        self.visit_u64(port.unsigned_abs())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Port, A::Error> {
        let long = LongPort::deserialize(serde::de::value::MapAccessDeserializer::new(map))?;
        let address = long.host_ip.map(|it| format!("{}:", it.0));
        let protocol = long.protocol.map_or_else(|| "tcp".to_owned(), |it| it.0);
        let address = address.unwrap_or_default();
        let text = format!("{address}{}:{}/{protocol}", long.published.0, long.target);
        self.visit_str(&text)
    }
}

/// A size in bytes, as `512m` or `1g`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory(u64);

impl Memory {
    /// Whole MiB.
    pub fn mib(self) -> u64 {
        self.0 >> 20
    }
}

impl<'de> Deserialize<'de> for Memory {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let Text(text) = Text::deserialize(from)?;
        size(&text).map(Self).ok_or_else(|| {
            Error::custom(format!(
                "{text:?} is no size of whole MiB, as 512m or 1g are"
            ))
        })
    }
}

fn size(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let end = text
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let shift = match unit {
        "" | "b" => 0,
        "k" | "kb" => 10,
        "m" | "mb" => 20,
        "g" | "gb" => 30,
        _ => return None,
    };
    let bytes = number.parse::<u64>().ok()?.checked_mul(1 << shift)?;
    (bytes > 0 && bytes.is_multiple_of(1 << 20)).then_some(bytes)
}

/// A time, as `1m30s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time(pub Duration);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let Text(text) = Text::deserialize(from)?;
        let time = humantime::parse_duration(&text);
        time.map(Self)
            .map_err(|error| Error::custom(format!("{text:?} is no time: {error}")))
    }
}
