//! Modules of a kernel that a guest needs, and the order in which they load.
//!
//! Worked out from what each module says of itself, the `.modinfo` section, so
//! that neither depmod in here nor modprobe in the guest is needed.

use object::{Object, ObjectSection};
use std::collections::BTreeSet;

/// Modules that a guest needs besides their dependencies: for its devices, and
/// for its root file system where that is no part of the kernel proper.
/// `crc32c_generic` is a dependency of ext4's that no module declares: the
/// kernel would have modprobe find it. By the last two a clone ends its
/// parent's connections.
pub(crate) const WANTED: [&str; 9] = [
    "virtio_pci",
    "virtio_console",
    "virtio_net",
    "virtio_blk",
    "virtio_balloon",
    "crc32c_generic",
    "ext4",
    "tcp_diag",
    "udp_diag",
];

/// Reason why modules make no set that can be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModuleError {
    /// One is neither there nor built into the kernel.
    #[error("there is no module {name}")]
    Missing {
        /// Name of the module.
        name: String,
    },
    /// One depends on itself by way of others.
    #[error("module {name} depends on itself")]
    Cycle {
        /// Name of the module.
        name: String,
    },
    /// One is not an object file.
    #[error("module {name} cannot be parsed")]
    Malformed {
        /// Name of the module.
        name: String,
        /// Fault of the module.
        source: object::Error,
    },
    /// One is compressed in a way unknown here.
    #[error("module {name} is compressed with something other than xz")]
    Compression {
        /// Name of the module.
        name: String,
    },
}

/// Place at which a kernel has the code of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// In the kernel proper: nothing to load.
    BuiltIn,
    /// In a module that needs these loaded first.
    Module { needs: Vec<String> },
}

/// The modules to load for `wanted`, each after everything it needs, none twice.
/// `find` says where a name's code is; it is asked once for each.
pub(crate) fn load_order<E: From<ModuleError>>(
    wanted: &[&str],
    find: &mut dyn FnMut(&str) -> Result<Found, E>,
) -> Result<Vec<String>, E> {
    let mut walk = Walk {
        find,
        done: BTreeSet::new(),
        above: Vec::new(),
        order: Vec::new(),
    };
    for name in wanted {
        walk.visit(name)?;
    }
    Ok(walk.order)
}

struct Walk<'a, E> {
    find: &'a mut dyn FnMut(&str) -> Result<Found, E>,
    done: BTreeSet<String>,
    above: Vec<String>,
    order: Vec<String>,
}

impl<E: From<ModuleError>> Walk<'_, E> {
    fn visit(&mut self, name: &str) -> Result<(), E> {
        if self.done.contains(name) {
            return Ok(());
        }
        if self.above.iter().any(|n| n == name) {
            return Err(ModuleError::Cycle { name: name.into() }.into());
        }
        match (self.find)(name)? {
            Found::BuiltIn => {}
            Found::Module { needs } => {
                self.above.push(name.into());
                for need in needs {
                    self.visit(&need)?;
                }
                self.above.pop();
                self.order.push(name.into());
            }
        }
        self.done.insert(name.into());
        Ok(())
    }
}

/// The module a file holds: `kernel/net/virtio-rng.ko.xz` is `virtio_rng`, for
/// the kernel takes `-` and `_` for the same. `None` if it is no module.
pub(crate) fn name_of_file(path: &str) -> Option<String> {
    let (_, file) = path.rsplit_once('/').unwrap_or(("", path));
    let (stem, _) = file.split_once(".ko")?;
    Some(stem.replace('-', "_"))
}

/// Lists the modules that `name`, with these bytes, needs loaded before it.
pub(crate) fn needs_of(name: &str, module: &[u8]) -> Result<Vec<String>, ModuleError> {
    let malformed = |source| ModuleError::Malformed {
        name: name.into(),
        source,
    };
    let file = object::File::parse(module).map_err(malformed)?;
    let info = match file.section_by_name(".modinfo") {
        Some(section) => section.data().map_err(malformed)?,
        None => &[],
    };
    Ok(parse_needs(info))
}

/// `.modinfo` is strings `key=value`, each ended by a zero byte.
fn parse_needs(info: &[u8]) -> Vec<String> {
    info.split(|b| *b == 0)
        .filter_map(|field| field.strip_prefix(b"depends="))
        .flat_map(|list| list.split(|b| *b == b','))
        .filter(|name| !name.is_empty())
        .map(|name| String::from_utf8_lossy(name).replace('-', "_"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    type Graph = BTreeMap<String, Found>;

    /// Modules that depend only on those with smaller numbers: no cycles.
    fn graph() -> impl Strategy<Value = Graph> {
        let needs = prop::collection::vec(any::<prop::sample::Index>(), 0..4);
        prop::collection::vec((prop::bool::weighted(0.2), needs), 1..12).prop_map(|nodes| {
            let found = |n: usize, built_in, needs: Vec<prop::sample::Index>| {
                if built_in {
                    return Found::BuiltIn;
                }
                let needs = needs.iter().filter(|_| n > 0);
                Found::Module {
                    needs: needs.map(|i| format!("m{}", i.index(n))).collect(),
                }
            };
            let named = nodes.into_iter().enumerate();
            named
                .map(|(n, (built_in, needs))| (format!("m{n}"), found(n, built_in, needs)))
                .collect()
        })
    }

    fn order(graph: &Graph, wanted: &[&str]) -> Result<Vec<String>, ModuleError> {
        load_order(wanted, &mut |name| {
            graph
                .get(name)
                .cloned()
                .ok_or_else(|| ModuleError::Missing { name: name.into() })
        })
    }

    fn module(needs: &[&str]) -> Found {
        Found::Module {
            needs: needs.iter().map(|n| (*n).to_owned()).collect(),
        }
    }

    proptest! {
        #[test]
        fn everything_needed_precedes_what_needs_it(graph in graph()) {
            let wanted: Vec<&str> = graph.keys().map(String::as_str).collect();
            let order = order(&graph, &wanted).expect("no cycles");
            for (place, name) in order.iter().enumerate() {
                let Found::Module { needs } = &graph[name] else {
                    panic!("{name} is built in");
                };
                for need in needs {
                    let loads = graph[need] != Found::BuiltIn;
                    prop_assert_eq!(loads, order[..place].contains(need), "{} of {}", need, name);
                }
            }
            let modules = graph.values().filter(|f| **f != Found::BuiltIn).count();
            prop_assert_eq!(order.len(), modules);
        }

        #[test]
        fn nothing_is_loaded_that_nobody_needs(graph in graph(), pick in any::<prop::sample::Index>()) {
            let names: Vec<&str> = graph.keys().map(String::as_str).collect();
            let wanted = names[pick.index(names.len())];
            let order = order(&graph, &[wanted]).expect("no cycles");
            for (place, name) in order.iter().enumerate() {
                let needed = order[place + 1..].iter().any(|later| {
                    matches!(&graph[later], Found::Module { needs } if needs.contains(name))
                });
                prop_assert!(needed || name == wanted, "{} is not needed", name);
            }
        }
    }

    #[test]
    fn cycle_is_named() {
        let graph = Graph::from([("a".into(), module(&["b"])), ("b".into(), module(&["a"]))]);
        let error = order(&graph, &["a"]).expect_err("a needs itself");
        assert!(matches!(error, ModuleError::Cycle { name } if name == "a"));
    }

    #[test]
    fn missing_dependency_is_named() {
        let graph = Graph::from([("a".into(), module(&["b"]))]);
        let error = order(&graph, &["a"]).expect_err("there is no b");
        assert!(matches!(error, ModuleError::Missing { name } if name == "b"));
    }

    #[test]
    fn needs_are_read_from_the_strings() {
        let info = b"license=GPL\0depends=virtio,net-failover\0name=virtio_net\0";
        assert_eq!(parse_needs(info), ["virtio", "net_failover"]);
        assert_eq!(parse_needs(b"depends=\0name=virtio\0"), [""; 0]);
        assert_eq!(parse_needs(b"xdepends=a\0"), [""; 0]);
    }

    #[test]
    fn bytes_that_are_no_module_are_refused() {
        let error = needs_of("a", b"not ELF").expect_err("no object file");
        assert!(matches!(error, ModuleError::Malformed { name, .. } if name == "a"));
    }

    #[test]
    fn names_of_files_are_names_of_modules() {
        let name = |path| name_of_file(path).unwrap_or_default();
        assert_eq!(
            name("kernel/drivers/char/hw_random/virtio-rng.ko"),
            "virtio_rng"
        );
        assert_eq!(name("ext4.ko.xz"), "ext4");
        assert_eq!(name_of_file("kernel/modules.order"), None);
    }
}
