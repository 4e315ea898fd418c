//! Plots of the results: one for each measure, a line for each policy.

use crate::{Measure, SimResults};
use plotters::prelude::*;
use std::path::{Path, PathBuf};

const SIZE: (u32, u32) = (720, 440);

/// A picture that could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw {path}", path = .path.display())]
pub struct PlotError {
    path: PathBuf,
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// Draws the measures a scenario names into a folder, and says where.
pub fn plots(results: &SimResults, name: &str, folder: &Path) -> Result<Vec<PathBuf>, PlotError> {
    let mut drawn = Vec::new();
    for &measure in &results.plots {
        let path = folder.join(format!("{name}-{}.svg", measure.slug()));
        let failed = |source| PlotError {
            path: path.clone(),
            source,
        };
        if draw(results, measure, &path).map_err(failed)? {
            drawn.push(path);
        }
    }
    Ok(drawn)
}

/// False if there is nothing to draw.
fn draw(
    results: &SimResults,
    measure: Measure,
    path: &Path,
) -> Result<bool, Box<dyn std::error::Error + Send + Sync>> {
    let mut cases: Vec<&str> = Vec::new();
    let mut policies = Vec::new();
    for row in &results.rows {
        if !cases.contains(&row.case.as_str()) {
            cases.push(&row.case);
        }
        if !policies.contains(&row.policy) {
            policies.push(row.policy);
        }
    }
    let values = || results.rows.iter().filter_map(|row| row.value(measure));
    let most = values().fold(0.0, f64::max);
    if values().next().is_none() {
        return Ok(false);
    }
    let place = |case: &str| cases.iter().position(|&c| c == case);
    let last = f64::from(u32::try_from(cases.len())?) - 0.5;
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(format!("{}: {measure}", results.title), ("sans-serif", 16))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(-0.5..last, 0.0..most.max(1e-9) * 1.25)?;
    let name = |x: &f64| {
        let near = x.round();
        let at = u32::try_from(forkyard_sched::round(near)).unwrap_or(u32::MAX);
        match (x - near).abs() < 1e-6 && near >= 0.0 {
            true => cases
                .get(at as usize)
                .map_or(String::new(), |c| (*c).to_owned()),
            false => String::new(),
        }
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(cases.len() * 2 + 1)
        .x_label_formatter(&name)
        .y_desc(measure.head())
        .draw()?;
    for (n, policy) in policies.into_iter().enumerate() {
        let rows = results.rows.iter().filter(|row| row.policy == policy);
        let points: Vec<(f64, f64)> = rows
            .filter_map(|row| {
                let x = u32::try_from(place(&row.case)?).ok()?;
                Some((f64::from(x), row.value(measure)?))
            })
            .collect();
        let colour = Palette99::pick(n).to_rgba();
        chart
            .draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?
            .label(policy.name())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        let marks = points
            .into_iter()
            .map(|at| Circle::new(at, 3, colour.filled()));
        chart.draw_series(marks)?;
    }
    chart
        .configure_series_labels()
        .border_style(BLACK.mix(0.3))
        .background_style(WHITE.mix(0.8))
        .position(SeriesLabelPosition::UpperLeft)
        .draw()?;
    area.present()?;
    Ok(true)
}
