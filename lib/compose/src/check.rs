//! A file that makes sense.

use crate::{ComposeFile, HealthCheck, MemberFile, yaml};
use forkyard_types::{NetworkPolicy, Publish, Restart, VmName};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

/// Members of one composition.
const MOST: usize = 64;

/// Fault of a file that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ComposeError {
    /// The file is not of the form.
    #[error("{0}")]
    Form(String),
    /// There is nothing in it.
    #[error("it has no members")]
    Empty,
    /// There is too much in it.
    #[error("it has {0} members, of which {MOST} may be")]
    Many(usize),
    /// No VM can be called so.
    #[error("{name:?} is no name for a VM: {why}")]
    Name {
        /// Name that would be the VM's.
        name: String,
        /// Reason.
        why: String,
    },
    /// A member says of nothing, or of two things, to be made of.
    #[error("{member}: wanted one of image and from")]
    Made {
        /// The member.
        member: String,
    },
    /// A substrate's VM is to be started again, as an image's alone can be.
    #[error("{member}: restart is of an image; what is woken of a substrate is not started again")]
    Fixed {
        /// The member.
        member: String,
    },
    /// An image's VM is to have a disk of another size.
    #[error("{member}: disk is of a substrate; what boots has its image's")]
    DiskOfImage {
        /// The member.
        member: String,
    },
    /// A member waits for one that is not in the file.
    #[error("{member} is to be after {after}, which is not in the file")]
    Unknown {
        /// The member.
        member: String,
        /// The other.
        after: String,
    },
    /// Members wait for each other.
    #[error("{} wait for each other", .0.join(", "))]
    Circle(Vec<String>),
    /// Two members want one port of the host.
    #[error("{one} and {other} both publish {port}")]
    Port {
        /// A member.
        one: String,
        /// The other.
        other: String,
        /// The port.
        port: String,
    },
    /// Ports are the members' own.
    #[error("network: ports are published by members")]
    PublishedByAll,
    /// A command without words.
    #[error("{member}: {what} has no words")]
    NoWords {
        /// The member.
        member: String,
        /// The command or the test.
        what: &'static str,
    },
}

/// Language that a file is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFormat {
    /// This crate's own form.
    Toml,
    /// The subset of compose files.
    Yaml,
}

impl FileFormat {
    /// Tells the form of a file by its name.
    pub fn of(path: &Path) -> Self {
        let suffix = path.extension().and_then(|suffix| suffix.to_str());
        match suffix {
            Some("yaml" | "yml") => Self::Yaml,
            Some(_) | None => Self::Toml,
        }
    }
}

/// A file that makes sense.
#[derive(Clone, Debug)]
pub struct Composition {
    /// Name of the composition.
    pub name: VmName,
    /// Rights of all members on the network.
    pub network: NetworkPolicy,
    /// Members by name.
    pub members: BTreeMap<String, ComposeMember>,
}

/// A member that makes sense.
#[derive(Clone, Debug)]
pub struct ComposeMember {
    /// Name of its VM.
    pub vm: VmName,
    /// System it is made of.
    pub of: Of,
    /// Environment of every command that is run in it.
    pub env: BTreeMap<String, String>,
    /// Ports of the host that lead to it.
    pub publish: Vec<Publish>,
    /// Files and folders that are copied in: path here and path in the guest.
    pub copy: BTreeMap<PathBuf, String>,
    /// Command that is begun once those that it waits for are well.
    pub command: Option<Vec<String>>,
    /// Test that it is well.
    pub health: Option<HealthCheck>,
    /// Members whose being well it waits for.
    pub after: BTreeSet<String>,
}

/// System that a member is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Of {
    /// An image, which boots.
    Image {
        /// Name of the image.
        image: String,
        /// Number of vCPUs.
        vcpus: u8,
        /// Memory in MiB.
        memory: u64,
        /// Tells whether it is started again if it ends by itself.
        restart: Restart,
    },
    /// A substrate, which is woken.
    Substrate {
        /// Name of the substrate.
        substrate: VmName,
        /// Memory in MiB; none: as was docked.
        memory: Option<u64>,
        /// Number of vCPUs; none: as many as were docked.
        vcpus: Option<u8>,
        /// Root disk in MiB; none: as was docked.
        disk: Option<u64>,
    },
}

impl Composition {
    /// Reads a file's text; `name` is that of the composition if the file has none.
    pub fn parse(form: FileFormat, text: &str, name: &str) -> Result<Self, ComposeError> {
        let file = match form {
            FileFormat::Toml => {
                toml::from_str(text).map_err(|error| ComposeError::Form(error.to_string()))?
            }
            FileFormat::Yaml => yaml::read(text)?,
        };
        Self::of(file, name)
    }

    fn of(file: ComposeFile, name: &str) -> Result<Self, ComposeError> {
        if !file.network.publish.is_empty() {
            return Err(ComposeError::PublishedByAll);
        }
        let name = file.name.as_deref().unwrap_or(name);
        let all: BTreeSet<String> = file.members.keys().cloned().collect();
        match all.len() {
            0 => return Err(ComposeError::Empty),
            many if many > MOST => return Err(ComposeError::Many(many)),
            _ => {}
        }
        let members = file.members.into_iter().map(|(member, file)| {
            let unknown = file.after.iter().find(|after| !all.contains(*after));
            if let Some(after) = unknown {
                let after = after.clone();
                return Err(ComposeError::Unknown { member, after });
            }
            Ok((member.clone(), ComposeMember::of(file, name, &member)?))
        });
        let this = Self {
            name: named(name)?,
            network: file.network,
            members: members.collect::<Result<_, _>>()?,
        };
        this.check_ports()?;
        this.check_order()?;
        Ok(this)
    }

    /// Members whose command may begin: all that they wait for are well, and they have not `begun`.
    pub fn startable(&self, begun: &BTreeSet<String>, well: &BTreeSet<String>) -> Vec<&str> {
        let startable = self
            .members
            .iter()
            .filter(|(name, member)| !begun.contains(*name) && member.after.is_subset(well));
        startable.map(|(name, _)| name.as_str()).collect()
    }

    fn check_ports(&self) -> Result<(), ComposeError> {
        let ports = |(name, member): (&String, &ComposeMember)| {
            let ports = member.publish.iter().map(|port| (name.clone(), *port));
            ports.collect::<Vec<_>>()
        };
        let all: Vec<_> = self.members.iter().flat_map(ports).collect();
        for (at, (one, port)) in all.iter().enumerate() {
            let clash = all[at + 1..]
                .iter()
                .find(|(_, other)| other.overlaps(*port));
            if let Some((other, _)) = clash {
                return Err(ComposeError::Port {
                    one: one.clone(),
                    other: other.clone(),
                    port: port.to_string(),
                });
            }
        }
        Ok(())
    }

    /// Lets each begin as soon as it may, until nothing does any more.
    fn check_order(&self) -> Result<(), ComposeError> {
        let mut done = BTreeSet::new();
        loop {
            let next: Vec<_> = self.startable(&done, &done);
            if next.is_empty() {
                break;
            }
            let next: Vec<String> = next.into_iter().map(str::to_owned).collect();
            done.extend(next);
        }
        let left = self.members.keys().filter(|name| !done.contains(*name));
        let left: Vec<_> = left.cloned().collect();
        match left.is_empty() {
            true => Ok(()),
            false => Err(ComposeError::Circle(left)),
        }
    }
}

impl ComposeMember {
    fn of(file: MemberFile, composition: &str, member: &str) -> Result<Self, ComposeError> {
        let wordless = |what| ComposeError::NoWords {
            member: member.to_owned(),
            what,
        };
        if file.command.as_ref().is_some_and(Vec::is_empty) {
            return Err(wordless("command"));
        }
        if file.health.as_ref().is_some_and(|it| it.test.is_empty()) {
            return Err(wordless("health.test"));
        }
        let of = match (file.image, file.from) {
            (Some(image), None) => {
                if file.disk.is_some() {
                    let member = member.to_owned();
                    return Err(ComposeError::DiskOfImage { member });
                }
                Of::Image {
                    image,
                    vcpus: file.vcpus.unwrap_or(1),
                    memory: file.memory.unwrap_or(256),
                    restart: file.restart,
                }
            }
            (None, Some(from)) => {
                if file.restart != Restart::No {
                    let member = member.to_owned();
                    return Err(ComposeError::Fixed { member });
                }
                Of::Substrate {
                    substrate: from,
                    memory: file.memory,
                    vcpus: file.vcpus,
                    disk: file.disk,
                }
            }
            (Some(_), Some(_)) | (None, None) => {
                let member = member.to_owned();
                return Err(ComposeError::Made { member });
            }
        };
        Ok(Self {
            vm: named(&format!("{composition}-{member}"))?,
            of,
            env: file.env,
            publish: file.publish,
            copy: file.copy,
            command: file.command,
            health: file.health.map(HealthCheck::of),
            after: file.after.into_iter().collect(),
        })
    }
}

fn named(name: &str) -> Result<VmName, ComposeError> {
    let parsed = name.parse::<VmName>();
    parsed.map_err(|error| ComposeError::Name {
        name: name.to_owned(),
        why: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAMP: &str = r#"
        [members.db]
        image = "mariadb"
        memory = 512
        health = { test = ["mariadb-admin", "ping"], interval = "500ms", start = "1m" }

        [members.web]
        from = "apache"
        memory = 1024
        vcpus = 2
        after = ["db"]
        publish = ["8080:80"]
        copy = { "site" = "/var/www/html" }
        command = ["apache2ctl", "start"]
    "#;

    fn refused(text: &str) -> String {
        let refused = Composition::parse(FileFormat::Toml, text, "x").expect_err("makes no sense");
        refused.to_string()
    }

    #[test]
    fn a_member_begins_once_those_that_it_waits_for_are_well() {
        let lamp = Composition::parse(FileFormat::Toml, LAMP, "lamp").expect("makes sense");
        assert_eq!(lamp.members["web"].vm.as_str(), "lamp-web");
        let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        assert_eq!(lamp.startable(&set(&[]), &set(&[])), ["db"]);
        assert_eq!(lamp.startable(&set(&["db"]), &set(&[])), [""; 0]);
        assert_eq!(lamp.startable(&set(&["db"]), &set(&["db"])), ["web"]);
        let health = lamp.members["db"].health.as_ref().expect("tested");
        assert_eq!(
            (health.interval.as_millis(), health.start.as_secs()),
            (500, 60)
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_says_where() {
        assert_eq!(refused("[members]"), "it has no members");
        assert!(refused("[members.a]\nimag = 'x'").contains("unknown field `imag`"));
        assert_eq!(refused("[members.a]"), "a: wanted one of image and from");
        assert_eq!(
            refused("[members.a]\nimage = 'x'\nafter = ['b']"),
            "a is to be after b, which is not in the file"
        );
        assert_eq!(
            refused(
                "[members.a]\nimage = 'x'\nafter = ['b']\n[members.b]\nimage = 'x'\nafter = ['a']"
            ),
            "a, b wait for each other"
        );
        assert_eq!(
            refused("[members.a]\nfrom = 'x'\nrestart = 'always'"),
            "a: restart is of an image; what is woken of a substrate is not started again"
        );
        assert_eq!(
            refused(
                "[members.a]\nimage = 'x'\npublish = ['80:80']\n[members.b]\nimage = 'x'\npublish = ['127.0.0.1:80:1']"
            ),
            "a and b both publish 80:80/tcp"
        );
        assert!(refused("[members.'a b']\nimage = 'x'").contains("\"x-a b\" is no name"));
        assert_eq!(
            refused("[members.a]\nimage = 'x'\ncommand = []"),
            "a: command has no words"
        );
        assert!(
            refused("[members.a]\nimage = 'x'\nhealth = { test = ['t'], interval = '3 weks' }")
                .contains("no time")
        );
    }
}
