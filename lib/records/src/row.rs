//! Values as SQLite keeps them.

use rusqlite::{Row, types::Type};
use serde::{Serialize, de::DeserializeOwned};
use std::{error::Error, str::FromStr};

/// A column whose text parses to `T`.
pub fn parsed<T: FromStr<Err: Error + Send + Sync + 'static>>(
    row: &Row<'_>,
    column: &str,
) -> rusqlite::Result<T> {
    let text: String = row.get(column)?;
    text.parse().map_err(|e| damaged(row, column, e))
}

/// A column that may be empty.
pub fn optional<T: FromStr<Err: Error + Send + Sync + 'static>>(
    row: &Row<'_>,
    column: &str,
) -> rusqlite::Result<Option<T>> {
    let text: Option<String> = row.get(column)?;
    text.map(|text| text.parse().map_err(|e| damaged(row, column, e)))
        .transpose()
}

/// A column that holds JSON.
pub fn from_json<T: DeserializeOwned>(row: &Row<'_>, column: &str) -> rusqlite::Result<T> {
    let text: String = row.get(column)?;
    serde_json::from_str(&text).map_err(|e| damaged(row, column, e))
}

/// A value as JSON.
pub fn json(value: &impl Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value).map_err(|e| rusqlite::Error::ToSqlConversionFailure(e.into()))
}

/// Error for a number that cannot be.
pub fn damaged_number(
    row: &Row<'_>,
    column: &str,
    error: std::num::TryFromIntError,
) -> rusqlite::Error {
    damaged(row, column, error)
}

fn damaged(
    row: &Row<'_>,
    column: &str,
    error: impl Error + Send + Sync + 'static,
) -> rusqlite::Error {
    let index = row.as_ref().column_index(column).unwrap_or(0);
    rusqlite::Error::FromSqlConversionFailure(index, Type::Text, Box::new(error))
}
