//! Tokens, of which only hashes are kept.

use crate::{Records, RecordsError, row::parsed};
use forkyard_types::{TokenId, TokenView};
use rusqlite::{OptionalExtension, Row, params};

/// A token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRecord {
    /// Public part of it.
    pub view: TokenView,
    /// Hash of its secret part.
    pub hash: [u8; 32],
}

fn read(row: &Row<'_>) -> rusqlite::Result<TokenRecord> {
    Ok(TokenRecord {
        view: TokenView {
            id: parsed(row, "id")?,
            name: row.get("name")?,
            created: row.get("created")?,
            expires: row.get("expires")?,
        },
        hash: row.get("hash")?,
    })
}

impl Records {
    /// Records a token.
    pub fn put_token(&self, token: &TokenRecord) -> Result<(), RecordsError> {
        let view = &token.view;
        let written = self.lock().execute(
            "INSERT INTO token (id, name, hash, created, expires) VALUES (?1, ?2, ?3, ?4, ?5)",
            params![
                view.id.as_str(),
                view.name,
                token.hash,
                view.created,
                view.expires
            ],
        );
        match written {
            Ok(_) => Ok(()),
            Err(rusqlite::Error::SqliteFailure(_, Some(text))) if text.contains("token.name") => {
                Err(RecordsError::TokenNameTaken {
                    name: view.name.clone(),
                })
            }
            Err(source) => Err(self.failed()(source)),
        }
    }

    /// A token by its id.
    pub fn token(&self, id: TokenId) -> Result<Option<TokenRecord>, RecordsError> {
        self.lock()
            .query_row("SELECT * FROM token WHERE id = ?1", [id.as_str()], read)
            .optional()
            .map_err(self.failed())
    }

    /// Every token, the oldest first.
    pub fn tokens(&self) -> Result<Vec<TokenRecord>, RecordsError> {
        let connection = self.lock();
        let mut statement = connection
            .prepare_cached("SELECT * FROM token ORDER BY created, rowid")
            .map_err(self.failed())?;
        let rows = statement.query_map([], read).map_err(self.failed())?;
        rows.collect::<Result<_, _>>().map_err(self.failed())
    }

    /// Forgets a token.
    pub fn remove_token(&self, id: TokenId) -> Result<(), RecordsError> {
        self.lock()
            .execute("DELETE FROM token WHERE id = ?1", [id.as_str()])
            .map_err(self.failed())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(name: &str, expires: Option<u64>) -> TokenRecord {
        TokenRecord {
            view: TokenView {
                id: TokenId::random(),
                name: name.into(),
                created: 7,
                expires,
            },
            hash: [9; 32],
        }
    }

    #[test]
    fn a_token_is_read_as_it_was_written_until_it_is_removed() {
        let folder = tempfile::tempdir().expect("folder");
        let store = Records::open(&folder.path().join("db")).expect("store");
        let (a, b) = (token("a", None), token("b", Some(1 << 40)));
        store.put_token(&a).expect("new");
        store.put_token(&b).expect("new");
        assert_eq!(store.tokens().expect("read"), [a.clone(), b.clone()]);
        assert_eq!(store.token(b.view.id).expect("read"), Some(b));
        store.remove_token(a.view.id).expect("removed");
        assert_eq!(store.token(a.view.id).expect("read"), None);
        store
            .put_token(&token("a", None))
            .expect("its name is free");
    }

    #[test]
    fn a_name_is_taken_once() {
        let folder = tempfile::tempdir().expect("folder");
        let store = Records::open(&folder.path().join("db")).expect("store");
        store.put_token(&token("a", None)).expect("first");
        assert!(matches!(
            store.put_token(&token("a", None)),
            Err(RecordsError::TokenNameTaken { name }) if name == "a"
        ));
    }
}
