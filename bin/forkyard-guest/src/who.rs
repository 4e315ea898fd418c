//! Users of a guest: the numbers of `USER` or `USER:GROUP`.

use crate::{foreign, init::Outcome};
use std::{
    fmt::{self, Display, Formatter},
    io,
    path::{Path, PathBuf},
};

/// User and groups that a program runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    pub user: u32,
    pub group: u32,
    pub groups: Vec<u32>,
    pub home: String,
}

/// List of users or groups, as far as it can be read.
#[derive(Debug, Default)]
struct List {
    path: PathBuf,
    text: String,
    /// Reason for which nothing of it can be read.
    unread: Option<io::Error>,
}

impl List {
    /// Reads it. One that is missing is empty.
    fn read(path: PathBuf) -> Self {
        let (text, unread) = match foreign::text(&path) {
            Ok(text) => (text, None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => (String::new(), None),
            Err(error) => (String::new(), Some(error)),
        };
        Self { path, text, unread }
    }
}

impl Display for List {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.unread {
            None => write!(to, "{path}"),
            Some(why) => write!(to, "{path}, which cannot be read: {why}"),
        }
    }
}

/// Looks `USER` or `USER:GROUP` up in the guest's files. A number need not be in them, nor root.
pub fn look_up(text: &str) -> Outcome<Who> {
    look_up_in(Path::new("/etc"), text)
}

fn look_up_in(etc: &Path, text: &str) -> Outcome<Who> {
    let [passwd, group] = ["passwd", "group"].map(|name| List::read(etc.join(name)));
    who(text, &passwd, &group)
}

/// Finds `USER` or `USER:GROUP` in these files of the image.
fn who(text: &str, users: &List, all_groups: &List) -> Outcome<Who> {
    let (passwd, group) = (users.text.as_str(), all_groups.text.as_str());
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
    let unknown = || format!("there is no user {user:?} in {users}");
    let id = field(2)
        .and_then(number)
        .or_else(|| number(user))
        .ok_or_else(unknown)?;
    let group_of = |wanted: &str| {
        let found = lines(group).find(|fields| fields[0] == wanted);
        let found = found.and_then(|fields| number(fields.get(2)?));
        let unknown = || format!("there is no group {wanted:?} in {all_groups}");
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
    use std::{fs, os::unix::fs::symlink};

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/sh\nweb:x:33:34:web:/srv/web:/bin/false\nbad\n";
    const GROUP: &str = "root:x:0:\nweb:x:34:\nlogs:x:4:other,web\nwebs:x:5:webs\n";

    type Lay<'a> = &'a dyn Fn(&Path);

    fn who(text: &str, passwd: &str, group: &str) -> Outcome<Who> {
        let [passwd, group] = [passwd, group].map(|text| List {
            text: text.to_owned(),
            ..List::default()
        });
        super::who(text, &passwd, &group)
    }

    #[test]
    fn a_list_that_cannot_be_read_is_named_where_it_is_needed_and_only_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let etc = folder.path();
        let [users, groups] = ["passwd", "group"].map(|name| etc.join(name));
        let mode = nix::sys::stat::Mode::S_IRWXU;
        let lay: [(&str, Lay<'_>); 3] = [
            ("regular", &|path| {
                nix::unistd::mkfifo(path, mode).expect("made")
            }),
            ("regular", &|path| {
                symlink("/dev/zero", path).expect("linked")
            }),
            ("too long", &|path| {
                let file = fs::File::create(path).expect("made");
                file.set_len(foreign::MOST + 1).expect("grown");
            }),
        ];
        for (word, lay) in lay {
            lay(&users);
            fs::write(&groups, GROUP).expect("written");
            for text in ["", "root", "33", "33:34", "0:logs"] {
                look_up_in(etc, text).expect(text);
            }
            let why = look_up_in(etc, "web").expect_err("no list of users");
            assert!(why.contains("passwd") && why.contains(word), "{why}");

            fs::remove_file(&users).expect("removed");
            fs::remove_file(&groups).expect("removed");
            fs::write(&users, PASSWD).expect("written");
            lay(&groups);
            assert_eq!(look_up_in(etc, "web").expect("a user").group, 34);
            let why = look_up_in(etc, "web:logs").expect_err("no list of groups");
            assert!(why.contains("group") && why.contains(word), "{why}");
            fs::remove_file(&users).expect("removed");
            fs::remove_file(&groups).expect("removed");
        }
        let why = look_up_in(etc, "web").expect_err("no list at all");
        assert!(!why.contains("cannot be read"), "{why}");
    }

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
