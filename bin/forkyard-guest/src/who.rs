//! Users of a guest: the numbers of `USER` or `USER:GROUP`.

use crate::init::Outcome;
use std::fs;

/// User and groups that a program runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    pub user: u32,
    pub group: u32,
    pub groups: Vec<u32>,
    pub home: String,
}

/// Looks `USER` or `USER:GROUP` up in the guest's files. A number need not be in them.
pub fn look_up(text: &str) -> Outcome<Who> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    who(text, &read("/etc/passwd"), &read("/etc/group"))
}

/// Finds `USER` or `USER:GROUP` in these files of the image. A number need not
/// be in them.
fn who(text: &str, passwd: &str, group: &str) -> Outcome<Who> {
    let (user, chosen) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group).filter(|group| !group.is_empty())),
        None => (text, None),
    };
    // An image without a list of its users still has this one.
    let user = if matches!(user, "" | "root") && !knows(passwd, user) {
        "0"
    } else {
        user
    };
    let known = lines(passwd).find(|fields| {
        let [name, _, number, ..] = fields[..] else {
            return false;
        };
        name == user || number == user
    });
    let field = |at: usize| known.as_ref().and_then(|fields| fields.get(at).copied());
    let number = |text: &str| text.parse().ok();
    let unknown = || format!("there is no user {user:?} in /etc/passwd");
    let id = field(2)
        .and_then(number)
        .or_else(|| number(user))
        .ok_or_else(unknown)?;
    let group_of = |wanted: &str| {
        let found = lines(group).find(|fields| fields[0] == wanted);
        let found = found.and_then(|fields| number(fields.get(2)?));
        let unknown = || format!("there is no group {wanted:?} in /etc/group");
        found.or_else(|| number(wanted)).ok_or_else(unknown)
    };
    let (gid, groups) = match chosen {
        Some(wanted) => (group_of(wanted)?, Vec::new()),
        None => {
            let name = field(0).unwrap_or_default();
            let is_member = |fields: &Vec<&str>| {
                let members = fields.get(3).copied().unwrap_or_default();
                !name.is_empty() && members.split(',').any(|member| member == name)
            };
            let groups = lines(group).filter(is_member);
            let groups = groups.filter_map(|fields| number(fields.get(2)?));
            (field(3).and_then(number).unwrap_or(0), groups.collect())
        }
    };
    let home = field(5).filter(|home| !home.is_empty()).unwrap_or("/");
    Ok(Who {
        user: id,
        group: gid,
        groups,
        home: home.to_owned(),
    })
}

fn knows(passwd: &str, user: &str) -> bool {
    lines(passwd).any(|fields| fields[0] == user)
}

fn lines(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().map(|line| line.split(':').collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/sh\nweb:x:33:34:web:/srv/web:/bin/false\nbad\n";
    const GROUP: &str = "root:x:0:\nweb:x:34:\nlogs:x:4:other,web\nwebs:x:5:webs\n";

    #[test]
    fn a_user_is_found_by_name_or_number_and_has_its_groups() {
        let web = Who {
            user: 33,
            group: 34,
            groups: vec![4],
            home: "/srv/web".into(),
        };
        assert_eq!(who("web", PASSWD, GROUP).as_ref(), Ok(&web));
        assert_eq!(who("33", PASSWD, GROUP).as_ref(), Ok(&web));
        let root = who("", PASSWD, GROUP).expect("root");
        assert_eq!((root.user, root.group, root.home.as_str()), (0, 0, "/root"));
    }

    #[test]
    fn a_group_that_is_chosen_is_the_only_one() {
        for text in ["web:logs", "33:4", "web:4"] {
            let who = who(text, PASSWD, GROUP).expect(text);
            assert_eq!((who.user, who.group, who.groups), (33, 4, vec![]), "{text}");
        }
    }

    #[test]
    fn a_number_need_not_be_known_and_a_name_must_be() {
        let nobody = who("1000", "", "").expect("a number");
        assert_eq!(
            (nobody.user, nobody.group, nobody.home.as_str()),
            (1000, 0, "/")
        );
        assert_eq!(who("1000:7", "", "").expect("numbers").group, 7);
        for text in ["", "root"] {
            assert_eq!(who(text, "", "").expect("root").user, 0);
        }
        for text in ["nobody", "bad", "web:none", "-1"] {
            who(text, PASSWD, GROUP).expect_err(text);
        }
    }
}
