//! The tables, and how an older file becomes a newer one.

use crate::RecordsError;
use rusqlite::Connection;
use std::path::Path;

/// One step a version; never edited once released.
const STEPS: [&str; 25] = [
    "
    CREATE TABLE family (
        id TEXT PRIMARY KEY NOT NULL,
        number INTEGER NOT NULL UNIQUE,
        next_member INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE vm (
        id TEXT PRIMARY KEY NOT NULL,
        name TEXT NOT NULL,
        family TEXT NOT NULL REFERENCES family(id),
        member INTEGER NOT NULL,
        parent TEXT,
        fork TEXT,
        epoch TEXT NOT NULL,
        image TEXT NOT NULL,
        vcpus INTEGER NOT NULL,
        memory INTEGER NOT NULL,
        uid INTEGER NOT NULL UNIQUE,
        accel TEXT NOT NULL,
        state TEXT NOT NULL,
        created INTEGER NOT NULL,
        warm INTEGER NOT NULL,
        memory_image TEXT,
        chain TEXT NOT NULL,
        machine TEXT
    ) STRICT;
    -- Shells have no name yet that a user could know.
    CREATE UNIQUE INDEX vm_name ON vm(name) WHERE state <> 'warm';
    CREATE UNIQUE INDEX vm_member ON vm(family, member) WHERE state <> 'warm';
    CREATE TABLE fork (
        id TEXT PRIMARY KEY NOT NULL,
        parent TEXT NOT NULL REFERENCES vm(id) ON DELETE CASCADE,
        report TEXT NOT NULL
    ) STRICT;
",
    "
    ALTER TABLE family ADD COLUMN max_clones INTEGER;
    ALTER TABLE vm ADD COLUMN secrets TEXT NOT NULL DEFAULT '[]';
",
    // What a family may do on the network; none for one founded before.
    "ALTER TABLE family ADD COLUMN network TEXT;",
    "
    CREATE TABLE token (
        id TEXT PRIMARY KEY NOT NULL,
        name TEXT NOT NULL UNIQUE,
        hash BLOB NOT NULL,
        created INTEGER NOT NULL,
        expires INTEGER
    ) STRICT;
",
    // How many forks lie between a VM and the one its family began with.
    "
    CREATE TABLE ticket (
        id TEXT PRIMARY KEY NOT NULL,
        entry TEXT NOT NULL
    ) STRICT;
    ALTER TABLE vm ADD COLUMN generation INTEGER NOT NULL DEFAULT 0;
",
    // In a checkpoint that a guest took, the request it was taken by.
    "ALTER TABLE vm ADD COLUMN request TEXT;",
    // Clones on other hosts, and of VMs on other hosts: what their disks lie over,
    // why they were ended, which places of a family which host gives.
    "
    ALTER TABLE vm ADD COLUMN disk_image TEXT;
    ALTER TABLE vm ADD COLUMN failure TEXT;
    ALTER TABLE family ADD COLUMN first_member INTEGER;
    ALTER TABLE family ADD COLUMN end_member INTEGER;
    CREATE TABLE lent (
        family TEXT NOT NULL REFERENCES family(id) ON DELETE CASCADE,
        peer TEXT NOT NULL,
        first INTEGER NOT NULL,
        places INTEGER NOT NULL,
        PRIMARY KEY (family, peer)
    ) STRICT;
    CREATE TABLE abroad (
        fork TEXT NOT NULL,
        peer TEXT NOT NULL,
        family TEXT NOT NULL,
        entry TEXT NOT NULL,
        PRIMARY KEY (fork, peer)
    ) STRICT;
",
    // Families whose network is on several hosts: this one's end of tunnels, that of
    // the one that let it in, and the node that told of each host.
    "
    ALTER TABLE family ADD COLUMN tunnel TEXT;
    ALTER TABLE family ADD COLUMN lender TEXT;
    CREATE TABLE family_host (
        family TEXT NOT NULL REFERENCES family(id) ON DELETE CASCADE,
        teller TEXT NOT NULL,
        tunnel TEXT NOT NULL,
        first INTEGER NOT NULL,
        places INTEGER NOT NULL
    ) STRICT;
",
    // vCPUs that a clone was granted, where these are not all it has.
    "ALTER TABLE vm ADD COLUMN granted INTEGER;",
    // What a guest could not do when it came up.
    "ALTER TABLE vm ADD COLUMN notes TEXT NOT NULL DEFAULT '[]';",
    // What a VM that booted boots again.
    "ALTER TABLE vm ADD COLUMN kernel TEXT;",
    // Substrates: the page images of each are columns, for these outlive the VMs over them.
    "
    CREATE TABLE substrate (
        name TEXT PRIMARY KEY NOT NULL,
        memory_image TEXT,
        disk_image TEXT,
        entry TEXT NOT NULL
    ) STRICT;
",
    // The volume that a VM writes, or whose snapshot its slices lie over.
    "ALTER TABLE vm ADD COLUMN volume TEXT NOT NULL DEFAULT 'null';",
    // VMs that stand still because they may run elsewhere: what decides it is that host.
    "
    CREATE TABLE moving (
        vm TEXT PRIMARY KEY,
        peer TEXT NOT NULL,
        migration TEXT NOT NULL
    ) STRICT;
",
    // Labels of a VM, its environment and when it is wanted no more.
    "
    CREATE TABLE terms (
        vm TEXT PRIMARY KEY NOT NULL REFERENCES vm(id) ON DELETE CASCADE,
        entry TEXT NOT NULL
    ) STRICT;
",
    // Volumes that are at home elsewhere: what is here of them is not to be written. And the VMs
    // that came by migrations, whatever became of them.
    "
    CREATE TABLE volume_copy (
        volume TEXT PRIMARY KEY NOT NULL,
        home TEXT NOT NULL,
        arriving TEXT,
        is_new INTEGER NOT NULL,
        id TEXT
    ) STRICT;
    CREATE TABLE landed (
        migration TEXT PRIMARY KEY NOT NULL,
        vm TEXT NOT NULL
    ) STRICT;
",
    // Ports that no guest may reach, as they were known last.
    "
    CREATE TABLE closed (
        place TEXT NOT NULL,
        is_tcp INTEGER NOT NULL,
        PRIMARY KEY (place, is_tcp)
    ) STRICT;
",
    // Ports of the host are each VM's own, clones' too, and not the family's founder's alone.
    "
    ALTER TABLE vm ADD COLUMN publish TEXT NOT NULL DEFAULT '[]';
    UPDATE vm SET publish = COALESCE(
        (SELECT json_extract(network, '$.publish') FROM family WHERE family.id = vm.family), '[]')
        WHERE parent IS NULL;
    UPDATE family SET network = json_remove(network, '$.publish') WHERE network IS NOT NULL;
",
    // Data disks of a VM.
    "ALTER TABLE vm ADD COLUMN data TEXT NOT NULL DEFAULT '[]';",
    // VMs that are kept ready of a substrate. And the VMs whose disk is to depend on nothing.
    "
    CREATE TABLE standby (
        substrate TEXT PRIMARY KEY NOT NULL REFERENCES substrate(name) ON DELETE CASCADE,
        entry TEXT NOT NULL
    ) STRICT;
    CREATE TABLE independence (
        vm TEXT PRIMARY KEY NOT NULL REFERENCES vm(id) ON DELETE CASCADE
    ) STRICT;
",
    // A VM that was paused when it was to move stays so.
    "ALTER TABLE moving ADD COLUMN was_paused INTEGER NOT NULL DEFAULT 0;",
    // The CPU that a VM may have at most.
    "ALTER TABLE vm ADD COLUMN cpu TEXT NOT NULL DEFAULT 'null';",
    // The version of their messages that the agents in checkpoints speak.
    "
    CREATE TABLE agent (
        vm TEXT PRIMARY KEY NOT NULL REFERENCES vm(id) ON DELETE CASCADE,
        version INTEGER NOT NULL
    ) STRICT;
",
    // How much memory a guest found when it booted.
    "
    ALTER TABLE vm ADD COLUMN booted INTEGER NOT NULL DEFAULT 0;
    UPDATE vm SET booted = memory;
",
    // Terms in which volumes are at home at hosts, and moves of theirs that are not settled.
    "
    CREATE TABLE volume_term (
        volume TEXT PRIMARY KEY NOT NULL,
        id TEXT NOT NULL,
        term INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE volume_leaving (
        volume TEXT PRIMARY KEY NOT NULL,
        id TEXT NOT NULL,
        peer TEXT NOT NULL,
        migration TEXT NOT NULL,
        term INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE volume_landing (
        volume TEXT PRIMARY KEY NOT NULL,
        id TEXT NOT NULL,
        peer TEXT NOT NULL,
        migration TEXT NOT NULL,
        term INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE volume_landed (
        migration TEXT PRIMARY KEY NOT NULL,
        volume TEXT NOT NULL,
        term INTEGER NOT NULL
    ) STRICT;
",
];

/// Number of the last step of daemons whose guests all speak an earlier version of the messages
/// than those of the daemons that recorded it first.
const BEFORE_AGENTS: usize = 17;

pub fn prepare(path: &Path, connection: &mut Connection) -> Result<(), RecordsError> {
    let failed = |source| RecordsError::Access {
        path: path.into(),
        source,
    };
    // Most records matter only while the VMs of this host run, and those end with
    // it: a power cut may lose the last rows, never the file's consistency. What must
    // survive one is flushed: checkpoints and tokens.
    connection
        .execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = ON;",
        )
        .map_err(failed)?;
    // A daemon that believed half of its records would undo what runs.
    let said: String = connection
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(failed)?;
    if said != "ok" {
        return Err(RecordsError::Damaged {
            path: path.into(),
            said,
        });
    }
    let found: i64 = connection
        .query_row("PRAGMA user_version", [], |row| row.get(0))
        .map_err(failed)?;
    let known = i64::try_from(STEPS.len()).unwrap_or(i64::MAX);
    let done = match usize::try_from(found) {
        Ok(done) if found <= known => done,
        Ok(_) | Err(_) => {
            return Err(RecordsError::Newer {
                path: path.into(),
                found,
                known,
            });
        }
    };
    for (version, step) in (1i64..).zip(STEPS).skip(done) {
        let transaction = connection.transaction().map_err(failed)?;
        transaction.execute_batch(step).map_err(failed)?;
        transaction
            .pragma_update(None, "user_version", version)
            .map_err(failed)?;
        if version == known && (1..=BEFORE_AGENTS).contains(&done) {
            transaction
                .execute_batch("INSERT INTO agent SELECT id, 0 FROM vm WHERE state = 'checkpoint'")
                .map_err(failed)?;
        }
        transaction.commit().map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::{Records, RecordsError};
    use rusqlite::Connection;

    #[test]
    fn records_of_a_later_version_are_refused() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("db");
        drop(Records::open(&path).expect("new"));
        Connection::open(&path)
            .and_then(|c| c.pragma_update(None, "user_version", 999))
            .expect("raised");
        assert!(matches!(
            Records::open(&path),
            Err(RecordsError::Newer { found: 999, .. })
        ));
    }

    #[test]
    fn a_file_of_which_a_part_is_overwritten_or_missing_is_refused() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("db");
        drop(Records::open(&path).expect("new"));
        let whole = std::fs::read(&path).expect("there");
        let page = 4096;
        for nth in 1..whole.len() / page {
            let mut damaged = whole.clone();
            damaged[nth * page..(nth + 1) * page].fill(b'x');
            std::fs::write(&path, &damaged).expect("written");
            let refused = Records::open(&path).map(drop);
            assert!(
                matches!(
                    refused,
                    Err(RecordsError::Damaged { .. } | RecordsError::Access { .. })
                ),
                "page {nth}: {refused:?}"
            );
        }
        std::fs::write(&path, &whole[..whole.len() - page]).expect("written");
        let refused = Records::open(&path).map(drop);
        assert!(refused.is_err(), "{refused:?}");
        std::fs::write(&path, &whole).expect("restored");
        Records::open(&path).expect("whole");
    }

    #[test]
    fn a_file_that_is_no_database_is_refused() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("db");
        std::fs::write(&path, vec![b'x'; 8192]).expect("written");
        assert!(matches!(
            Records::open(&path),
            Err(RecordsError::Access { .. })
        ));
    }
}
