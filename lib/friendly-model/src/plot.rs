//! Plots of the results.

use crate::Trajectory;
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

/// Draws the threads of each guest over time into a file, as SVG.
pub fn plot(trajectory: &Trajectory, title: &str, path: &Path) -> Result<(), PlotError> {
    draw(trajectory, title, path).map_err(|source| PlotError {
        path: path.to_owned(),
        source,
    })
}

fn draw(
    trajectory: &Trajectory,
    title: &str,
    path: &Path,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let most = trajectory
        .threads
        .iter()
        .flatten()
        .copied()
        .fold(0.0, f64::max);
    let last = trajectory.times.last().copied().unwrap_or(1.0);
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 16))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(48)
        .build_cartesian_2d(0.0..last, 0.0..most.max(1e-9) * 1.1)?;
    chart
        .configure_mesh()
        .x_desc("time")
        .y_desc("threads")
        .draw()?;
    for (n, line) in trajectory.threads.iter().enumerate() {
        let colour = Palette99::pick(n).to_rgba();
        let points = trajectory.times.iter().copied().zip(line.iter().copied());
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
            .label(format!("guest {}", n + 1))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .border_style(BLACK.mix(0.3))
        .background_style(WHITE.mix(0.8))
        .position(SeriesLabelPosition::UpperRight)
        .draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Model, adapt};

    #[test]
    fn every_guest_has_a_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.svg");
        let trajectory = adapt(&Model::default()).expect("followed");
        plot(&trajectory, "Guests", &path).expect("drawn");
        let text = std::fs::read_to_string(&path).expect("written");
        assert!(text.starts_with("<svg"), "{text:.60}");
        for guest in 1..=5 {
            assert!(text.contains(&format!("guest {guest}")));
        }
        let nowhere = folder.path().join("none/a.svg");
        plot(&trajectory, "Guests", &nowhere).expect_err("no such folder");
    }
}
