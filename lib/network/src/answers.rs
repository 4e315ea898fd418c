//! Names that a family may reach: which questions are asked for it, and what their answers open.
//!
//! ```text
//! question --its name allowed?--> asked --answer--> addresses, open for as long as the answer holds
//!                `--no--> refused                     `- private ones: none
//! ```
//!
//! Questions and answers are hostile input: of bounded size, decoded by a kept library, and believed only as far as
//! they belong together. The owner of an allowed name decides which public addresses are opened, and no others. Questions about
//! other names are not passed on: they would carry anything anywhere. Opens no socket and reads no clock.

use crate::private::is_private;
use forkyard_types::NamedHost;
use hickory_proto::{
    op::{Message, MessageType, OpCode, Query, ResponseCode},
    rr::{DNSClass, Name, RData},
};
use std::net::Ipv4Addr;

/// Shortest and longest time, in seconds, for which an address is open: programs connect a little after they have
/// asked, and some never ask again.
const SHORTEST: u32 = 60;
const LONGEST: u32 = 3600;
/// Aliases that are followed.
const ALIASES: usize = 16;
/// Addresses of one answer that are opened.
const MOST: usize = 64;

/// An address that an answer opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Opened {
    pub address: Ipv4Addr,
    /// Entry that it is opened for: the port is said there.
    pub host: NamedHost,
    /// Seconds.
    pub time: u32,
}

/// Verdict on a question.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Passed on.
    Ask(Box<Question>),
    /// Answered so.
    Answer(Vec<u8>),
    /// No question.
    Ignore,
}

/// A question about a name that may be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    /// As its asker numbers it.
    pub id: u16,
    query: Query,
}

/// Judges what a guest has sent.
pub(crate) fn judge(bytes: &[u8], allowed: &[NamedHost]) -> Verdict {
    let Ok(message) = Message::from_vec(bytes) else {
        return Verdict::Ignore;
    };
    if message.metadata.message_type != MessageType::Query {
        return Verdict::Ignore;
    }
    let id = message.metadata.id;
    let refuse = |code| match refusal(&message, code) {
        Some(bytes) => Verdict::Answer(bytes),
        None => Verdict::Ignore,
    };
    let [query] = &message.queries[..] else {
        return refuse(ResponseCode::FormErr);
    };
    if message.metadata.op_code != OpCode::Query || query.query_class() != DNSClass::IN {
        return refuse(ResponseCode::NotImp);
    }
    let name = text(query.name());
    match allowed.iter().any(|host| host.matches(&name)) {
        true => Verdict::Ask(Box::new(Question {
            id,
            query: query.clone(),
        })),
        false => refuse(ResponseCode::Refused),
    }
}

/// An answer that there is none, for this reason.
pub(crate) fn failed(question: &Question) -> Option<Vec<u8>> {
    let mut answer = Message::error_msg(question.id, OpCode::Query, ResponseCode::ServFail);
    answer.add_query(question.query.clone());
    answer.to_vec().ok()
}

fn refusal(message: &Message, code: ResponseCode) -> Option<Vec<u8>> {
    let mut answer = Message::error_msg(message.metadata.id, message.metadata.op_code, code);
    answer.metadata.recursion_desired = message.metadata.recursion_desired;
    answer.add_queries(message.queries.iter().take(1).cloned());
    answer.to_vec().ok()
}

/// Addresses that an answer opens; none if it is not one to this question, asked as number `id`.
pub(crate) fn opened(
    bytes: &[u8],
    question: &Question,
    id: u16,
    allowed: &[NamedHost],
) -> Option<Vec<Opened>> {
    let message = Message::from_vec(bytes).ok()?;
    let same = |query: &Query| {
        query.name().eq_ignore_root(question.query.name())
            && query.query_type() == question.query.query_type()
            && query.query_class() == question.query.query_class()
    };
    let is_answer = message.metadata.message_type == MessageType::Response
        && message.metadata.id == id
        && matches!(&message.queries[..], [query] if same(query));
    if !is_answer {
        return None;
    }
    let asked = text(question.query.name());
    let hosts: Vec<_> = allowed.iter().filter(|host| host.matches(&asked)).collect();
    let mut names = vec![question.query.name().clone()];
    for _ in 0..ALIASES {
        let next = message.answers.iter().find_map(|record| {
            let RData::CNAME(alias) = &record.data else {
                return None;
            };
            let is_next = is_one_of(&record.name, &names) && !is_one_of(&alias.0, &names);
            is_next.then(|| alias.0.clone())
        });
        match next {
            Some(alias) => names.push(alias),
            None => break,
        }
    }
    let mut all = Vec::new();
    for record in &message.answers {
        let RData::A(address) = &record.data else {
            continue;
        };
        if is_private(address.0) || !is_one_of(&record.name, &names) {
            continue;
        }
        let opened = hosts.iter().map(|host| Opened {
            address: address.0,
            host: (*host).clone(),
            time: record.ttl.clamp(SHORTEST, LONGEST),
        });
        all.extend(opened);
        if all.len() >= MOST {
            break;
        }
    }
    all.truncate(MOST);
    Some(all)
}

fn is_one_of(name: &Name, names: &[Name]) -> bool {
    names.iter().any(|it| it.eq_ignore_root(name))
}

/// A name in lower case, without the dot at its end.
fn text(name: &Name) -> String {
    let text = name.to_ascii().to_ascii_lowercase();
    text.trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_proto::rr::{Record, RecordType, rdata};
    use proptest::prelude::*;

    fn allowed(words: &[&str]) -> Vec<NamedHost> {
        let read = |word: &&str| word.parse().expect("a name");
        words.iter().map(read).collect()
    }

    fn name(text: &str) -> Name {
        Name::from_ascii(text).expect("a name")
    }

    fn ask(about: &str) -> Vec<u8> {
        let mut message = Message::new(7, MessageType::Query, OpCode::Query);
        message.add_query(Query::query(name(about), RecordType::A));
        message.to_vec().expect("bytes")
    }

    fn question(about: &str) -> Question {
        match judge(&ask(about), &allowed(&["*.test", "test"])) {
            Verdict::Ask(question) => *question,
            other @ (Verdict::Answer(_) | Verdict::Ignore) => panic!("{other:?}"),
        }
    }

    fn answer(about: &str, records: &[(&str, RData, u32)]) -> Vec<u8> {
        let mut message = Message::response(9, OpCode::Query);
        message.add_query(Query::query(name(about), RecordType::A));
        for (of, data, ttl) in records {
            message.add_answer(Record::from_rdata(name(of), *ttl, data.clone()));
        }
        message.to_vec().expect("bytes")
    }

    fn a(address: [u8; 4]) -> RData {
        RData::A(rdata::A(address.into()))
    }

    fn alias(to: &str) -> RData {
        RData::CNAME(rdata::CNAME(name(to)))
    }

    #[test]
    fn questions_about_allowed_names_are_asked_and_others_refused() {
        let hosts = allowed(&["example.test:443", "*.cdn.test"]);
        for (about, asked) in [
            ("example.test.", true),
            ("EXAMPLE.test.", true),
            ("a.b.cdn.test.", true),
            ("cdn.test.", false),
            ("www.example.test.", false),
            ("evil-example.test.", false),
            ("example.test.evil.", false),
        ] {
            let verdict = judge(&ask(about), &hosts);
            assert_eq!(matches!(verdict, Verdict::Ask(_)), asked, "{about}");
            if let Verdict::Answer(bytes) = verdict {
                let said = Message::from_vec(&bytes).expect("a message");
                assert_eq!(said.metadata.response_code, ResponseCode::Refused);
                assert_eq!((said.metadata.id, said.queries.len()), (7, 1));
            }
        }
        let answer = answer("example.test.", &[]);
        assert_eq!(judge(&answer, &hosts), Verdict::Ignore, "no question");
        assert_eq!(judge(b"x", &hosts), Verdict::Ignore);
    }

    #[test]
    fn an_answer_opens_the_public_addresses_of_its_name_and_its_aliases_alone() {
        let hosts = allowed(&["www.test:443"]);
        let of = |records: &[(&str, RData, u32)]| {
            opened(
                &answer("www.test.", records),
                &question("www.test."),
                9,
                &hosts,
            )
        };
        let one = Opened {
            address: [198, 51, 100, 1].into(),
            host: hosts[0].clone(),
            time: 300,
        };
        let address = a([198, 51, 100, 1]);
        assert_eq!(
            of(&[("www.test.", address.clone(), 300)]),
            Some(vec![one.clone()])
        );
        let aliased = [
            ("cdn.other.", address.clone(), 300),
            ("x.other.", alias("cdn.other."), 5),
            ("www.test.", alias("x.other."), 5),
        ];
        assert_eq!(of(&aliased), Some(vec![one]), "in any order");
        assert_eq!(of(&[("evil.test.", address.clone(), 300)]), Some(vec![]));
        for private in [
            [10, 0, 0, 1],
            [169, 254, 169, 254],
            [127, 0, 0, 1],
            [192, 168, 1, 1],
        ] {
            assert_eq!(of(&[("www.test.", a(private), 300)]), Some(vec![]));
        }
        let times = [(0, SHORTEST), (u32::MAX, LONGEST)];
        for (ttl, time) in times {
            let found = of(&[("www.test.", address.clone(), ttl)]).expect("an answer");
            assert_eq!(found[0].time, time);
        }
        let many: Vec<_> = (0..200)
            .map(|n| ("www.test.", a([198, 51, 100, n]), 60))
            .collect();
        assert_eq!(of(&many).map(|it| it.len()), Some(MOST));
        // A loop of aliases ends.
        let round = [
            ("www.test.", alias("b.test."), 5),
            ("b.test.", alias("www.test."), 5),
        ];
        assert_eq!(of(&round), Some(vec![]));
    }

    #[test]
    fn an_answer_to_another_question_opens_nothing() {
        let hosts = allowed(&["www.test", "*.test"]);
        let records = [("www.test.", a([198, 51, 100, 1]), 300)];
        let bytes = answer("www.test.", &records);
        let asked = question("www.test.");
        assert!(opened(&bytes, &asked, 9, &hosts).is_some());
        assert_eq!(opened(&bytes, &asked, 8, &hosts), None, "another number");
        assert_eq!(opened(&bytes, &question("mail.test."), 9, &hosts), None);
        assert_eq!(opened(&ask("www.test."), &asked, 7, &hosts), None);
    }

    proptest! {
        #[test]
        fn no_bytes_do_more_than_be_refused(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let hosts = allowed(&["www.test"]);
            if let Verdict::Ask(question) = judge(&bytes, &hosts) {
                prop_assert!(text(question.query.name()) == "www.test");
            }
            let _ = opened(&bytes, &question("www.test."), 9, &hosts);
        }
    }
}
