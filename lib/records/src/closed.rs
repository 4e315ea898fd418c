//! Ports that no guest may reach, as they were known last: a daemon that starts closes them before it has heard of
//! any other host.

use crate::{Records, RecordsError, row::parsed};
use forkyard_types::Transport;
use rusqlite::params;
use std::net::SocketAddrV4;

impl Records {
    /// Records these in place of those before. They survive a power cut.
    pub fn put_closed(
        &self,
        closed: impl IntoIterator<Item = (SocketAddrV4, Transport)>,
    ) -> Result<(), RecordsError> {
        let put = || {
            let mut connection = self.lock();
            let transaction = connection.transaction()?;
            transaction.execute("DELETE FROM closed", [])?;
            for (at, transport) in closed {
                transaction.execute(
                    "INSERT INTO closed VALUES (?1, ?2)",
                    params![at.to_string(), transport == Transport::Tcp],
                )?;
            }
            transaction.commit()
        };
        put().map_err(self.failed())?;
        self.flush()
    }

    /// All of them.
    pub fn closed(&self) -> Result<Vec<(SocketAddrV4, Transport)>, RecordsError> {
        let connection = self.lock();
        let mut statement = connection
            .prepare_cached("SELECT place, is_tcp FROM closed")
            .map_err(self.failed())?;
        let rows = statement
            .query_map([], |row| {
                let transport = match row.get("is_tcp")? {
                    true => Transport::Tcp,
                    false => Transport::Udp,
                };
                Ok((parsed(row, "place")?, transport))
            })
            .map_err(self.failed())?;
        rows.collect::<Result<_, _>>().map_err(self.failed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_closed_last_is_known_to_the_next_daemon() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("db");
        let store = Records::open(&path).expect("store");
        assert_eq!(store.closed().expect("read"), []);
        let etcd = "192.0.2.1:2379".parse().expect("a place");
        let pages = "192.0.2.2:7434".parse().expect("a place");
        store
            .put_closed([(etcd, Transport::Udp)])
            .expect("recorded");
        let both = [(etcd, Transport::Tcp), (pages, Transport::Udp)];
        store.put_closed(both).expect("recorded");
        drop(store);
        let store = Records::open(&path).expect("again");
        assert_eq!(store.closed().expect("read"), both);
    }
}
