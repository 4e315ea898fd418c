//! Tickets, as the hosts that grant them record them.

use crate::{Records, RecordsError, row::parsed};
use forkyard_types::TicketId;
use rusqlite::params;

impl Records {
    /// Records a ticket, or its present state.
    pub fn put_ticket(&self, id: TicketId, entry: &str) -> Result<(), RecordsError> {
        let put = "INSERT INTO ticket VALUES (?1, ?2) ON CONFLICT (id) DO UPDATE SET entry = ?2";
        self.lock()
            .execute(put, params![id.to_string(), entry])
            .map_err(self.failed())?;
        Ok(())
    }

    /// Forgets a ticket. No error if it is not recorded.
    pub fn remove_ticket(&self, id: TicketId) -> Result<(), RecordsError> {
        self.lock()
            .execute("DELETE FROM ticket WHERE id = ?1", [id.to_string()])
            .map_err(self.failed())?;
        Ok(())
    }

    /// Every ticket.
    pub fn tickets(&self) -> Result<Vec<(TicketId, String)>, RecordsError> {
        let connection = self.lock();
        let mut statement = connection
            .prepare_cached("SELECT id, entry FROM ticket")
            .map_err(self.failed())?;
        let rows = statement
            .query_map([], |row| Ok((parsed(row, "id")?, row.get("entry")?)))
            .map_err(self.failed())?;
        rows.collect::<Result<_, _>>().map_err(self.failed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_read_as_it_was_last_written_until_it_is_removed() {
        let folder = tempfile::tempdir().expect("folder");
        let store = Records::open(&folder.path().join("db")).expect("store");
        let id = TicketId::random();
        store.put_ticket(id, "granted").expect("new");
        store.put_ticket(id, "cloned").expect("changed");
        assert_eq!(store.tickets().expect("read"), [(id, "cloned".to_owned())]);
        for _ in 0..2 {
            store.remove_ticket(id).expect("removed");
        }
        assert_eq!(store.tickets().expect("read"), []);
    }
}
