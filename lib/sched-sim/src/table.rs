//! Table of the results in Markdown, with the published figures beside them.

use crate::{Measure, Row, SimResults};
use std::fmt::Write;

/// Writes the table.
pub fn table(results: &SimResults) -> String {
    let mut text = format!("# {}\n\n", results.title);
    if !results.notes.is_empty() {
        text += results.notes.trim();
        text += "\n\n";
    }
    let shown: Vec<Measure> = Measure::ALL
        .into_iter()
        .filter(|m| results.rows.iter().any(|row| row.value(*m).is_some()))
        .collect();
    let mut lines = vec![vec!["case".to_owned(), "policy".to_owned()]];
    lines[0].extend(shown.iter().map(ToString::to_string));
    for row in &results.rows {
        let mut line = vec![row.case.clone(), row.policy.to_string()];
        line.extend(shown.iter().map(|&m| cell(results, row, m)));
        lines.push(line);
    }
    write(&mut text, &lines);
    let _ = writeln!(
        text,
        "\nMeans over {} seeds; in brackets what was published. Speed-up and neighbour: against the first policy.",
        results.seeds
    );
    text
}

fn cell(results: &SimResults, row: &Row, measure: Measure) -> String {
    let Some(value) = row.value(measure) else {
        return String::new();
    };
    let ours = match value.abs() {
        0.0 => "0".to_owned(),
        v if v >= 1_000.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    };
    let paper = results.papers.iter().find(|(case, policy, of, _)| {
        (case.as_str(), *policy, *of) == (row.case.as_str(), row.policy, measure)
    });
    match paper {
        Some((_, _, _, theirs)) => format!("{ours} ({theirs})"),
        None => ours,
    }
}

fn write(text: &mut String, lines: &[Vec<String>]) {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for (n, line) in lines.iter().enumerate() {
        for (cell, width) in line.iter().zip(&widths) {
            let _ = write!(text, "| {cell:width$} ");
        }
        text.push_str("|\n");
        if n == 0 {
            for width in &widths {
                let _ = write!(text, "|{}", "-".repeat(width + 2));
            }
            text.push_str("|\n");
        }
    }
}
