//! Plots of the results.

use crate::{BenchError, Contender, Experiment, Results, Sample, pauses::Way, report::Spread};
use plotters::prelude::*;
use std::{io, path::Path};

const SIZE: (u32, u32) = (720, 440);

/// One line of a picture: its name and its points.
type Line = (String, Vec<(f64, f64)>);

/// Content and axes of a plot.
struct Picture<'a> {
    file: &'a str,
    title: &'a str,
    x: &'a str,
    y: &'a str,
    lines: Vec<Line>,
}

/// Draws every experiment of a run into a folder, as SVG.
pub fn plots(results: &Results, folder: &Path) -> Result<(), BenchError> {
    for experiment in &results.options.experiments {
        match experiment {
            Experiment::Race => {
                let clones = |what: fn(&Sample) -> Option<f64>| by_clones(results, what);
                draw(
                    folder,
                    Picture {
                        file: "running.svg",
                        title: "Until the last clone runs (medians)",
                        x: "clones",
                        y: "ms",
                        lines: clones(|s| s.running_ms),
                    },
                )?;
                draw(
                    folder,
                    Picture {
                        file: "first-command.svg",
                        title: "Until a command has ended in every clone (medians)",
                        x: "clones",
                        y: "ms",
                        lines: clones(|s| Some(s.first_command_ms)),
                    },
                )?;
            }
            Experiment::Pauses => {
                for (writing, file, title) in [
                    (
                        false,
                        "pause.svg",
                        "The parent's pause, nothing running in it (medians)",
                    ),
                    (
                        true,
                        "pause-writing.svg",
                        "The parent's pause while it writes (medians)",
                    ),
                ] {
                    draw(
                        folder,
                        Picture {
                            file,
                            title,
                            x: "filled with, MiB",
                            y: "ms",
                            lines: by_size(results, writing),
                        },
                    )?;
                }
            }
            Experiment::Rows => draw(
                folder,
                Picture {
                    file: "rows.svg",
                    title: "Forks in a row, and of clones of clones (medians)",
                    x: "fork of one parent; from 12 on: generation",
                    y: "ms",
                    lines: by_row(results),
                },
            )?,
            // A table says it all.
            Experiment::Pages | Experiment::Crowd => {}
        }
    }
    Ok(())
}

fn by_clones(results: &Results, what: fn(&Sample) -> Option<f64>) -> Vec<Line> {
    lines(Contender::ALL, |contender| {
        let all = results.options.clones.iter().copied();
        all.filter_map(|clones| {
            let same = results.samples.iter();
            let same = same.filter(|s| s.clones == clones && s.contender == contender);
            Some((
                f64::from(clones),
                Spread::of(same.filter_map(what).collect())?.median,
            ))
        })
        .collect()
    })
}

fn by_size(results: &Results, writing: bool) -> Vec<Line> {
    lines(Way::ALL, |way| {
        let all = results.options.sizes_mib.iter().copied();
        all.filter_map(|size| {
            let same = results.pauses.iter();
            let same = same.filter(|s| (s.size_mib, s.writing, s.way) == (size, writing, way));
            let x = f64::from(u32::try_from(size).ok()?);
            Some((x, Spread::of(same.map(|s| s.pause_ms).collect())?.median))
        })
        .collect()
    })
}

fn by_row(results: &Results) -> Vec<Line> {
    let at = |s: &crate::RowSample| match s.depth {
        0 => s.forks_before + 1,
        depth => 11 + depth,
    };
    let last = results.rows.iter().map(at).max().unwrap_or_default();
    let of = |what: fn(&crate::RowSample) -> f64| {
        (1..=last)
            .filter_map(|x| {
                let same = results.rows.iter().filter(|s| at(s) == x);
                Some((f64::from(x), Spread::of(same.map(what).collect())?.median))
            })
            .collect()
    };
    vec![
        ("running".to_owned(), of(|s| s.running_ms)),
        ("first command".to_owned(), of(|s| s.first_command_ms)),
        ("pause".to_owned(), of(|s| s.pause_ms)),
    ]
}

fn lines<T: Copy + ToString, const N: usize>(
    all: [T; N],
    points: impl Fn(T) -> Vec<(f64, f64)>,
) -> Vec<Line> {
    let lines = all.map(|one| (one.to_string(), points(one)));
    lines
        .into_iter()
        .filter(|(_, points)| !points.is_empty())
        .collect()
}

/// Both axes logarithmic: what is compared are ratios.
fn draw(folder: &Path, picture: Picture<'_>) -> Result<(), BenchError> {
    let points = || {
        picture
            .lines
            .iter()
            .flat_map(|(_, points)| points.iter().copied())
    };
    let bounds = |values: &mut dyn Iterator<Item = f64>| {
        values.fold(None, |bounds: Option<(f64, f64)>, value| {
            let (least, most) = bounds.unwrap_or((value, value));
            Some((least.min(value), most.max(value)))
        })
    };
    let (Some(x), Some(y)) = (
        bounds(&mut points().map(|(x, _)| x)),
        bounds(&mut points().map(|(_, y)| y)),
    ) else {
        return Ok(());
    };
    let path = folder.join(picture.file);
    let failed = |error: &dyn std::fmt::Display| {
        BenchError::host("draw a plot")(io::Error::other(error.to_string()))
    };
    let area = SVGBackend::new(&path, SIZE).into_drawing_area();
    area.fill(&WHITE).map_err(|e| failed(&e))?;
    let mut chart = ChartBuilder::on(&area)
        .caption(picture.title, ("sans-serif", 16))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(
            (x.0 * 0.9..x.1 * 1.1 + 0.1).log_scale(),
            (y.0 * 0.8..y.1 * 1.4 + 0.1).log_scale(),
        )
        .map_err(|e| failed(&e))?;
    chart
        .configure_mesh()
        .x_desc(picture.x)
        .y_desc(picture.y)
        .draw()
        .map_err(|e| failed(&e))?;
    for (n, (name, points)) in picture.lines.into_iter().enumerate() {
        let colour = Palette99::pick(n).to_rgba();
        let marks = points.clone();
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)))
            .map_err(|e| failed(&e))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        let marks = marks
            .into_iter()
            .map(|at| Circle::new(at, 3, colour.filled()));
        chart.draw_series(marks).map_err(|e| failed(&e))?;
    }
    chart
        .configure_series_labels()
        .border_style(BLACK.mix(0.3))
        .background_style(WHITE.mix(0.8))
        .position(SeriesLabelPosition::UpperLeft)
        .draw()
        .map_err(|e| failed(&e))?;
    area.present().map_err(|e| failed(&e))
}
