//! The plots of a report, as SVG.

use std::error::Error;

use plotters::prelude::*;

use super::SearchQuality;
use super::recall_qps::{COLOURS, GRID, TEXT, range_of};

type Drawn = Result<String, Box<dyn Error>>;

const SIZE: (u32, u32) = (520, 300);

/// Axes of a plot.
struct Axes {
    x: (&'static str, std::ops::Range<f64>),
    y: (String, std::ops::Range<f64>),
    /// Decimals of y labels.
    digits: usize,
}

/// Draws `series` into a plot with these axes.
macro_rules! plot {
    ($axes:expr, $($series:expr),+) => {{
        let Axes { x: (x_name, x), y: (y_name, y), digits } = $axes;
        let mut svg = String::new();
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let font = |size: i32| ("sans-serif", size).into_font().color(&TEXT);
        let mut chart = ChartBuilder::on(&root)
            .margin(10)
            .x_label_area_size(42)
            .y_label_area_size(72)
            .build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .x_desc(x_name)
            .y_desc(y_name)
            .x_labels(8)
            .y_labels(6)
            .x_label_formatter(&|x| format!("{x:.0}"))
            .y_label_formatter(&|y| format!("{y:.digits$}"))
            .label_style(font(13))
            .axis_desc_style(font(14))
            .bold_line_style(GRID)
            .light_line_style(WHITE)
            .axis_style(GRID)
            .draw()?;
        $(chart.draw_series($series)?;)+
        root.present()?;
        drop(chart);
        drop(root);
        Ok(svg)
    }};
}

/// Plots the number of nodes of each degree.
pub(super) fn degrees(degrees: &[u64]) -> Drawn {
    let last = degrees.iter().rposition(|&nodes| nodes > 0).unwrap_or(0) as f64;
    let first = degrees.iter().position(|&nodes| nodes > 0).unwrap_or(0) as f64;
    // Labels are whole numbers: with fewer degrees than labels some would repeat.
    let first = first.min(last - 8.0);
    let most = degrees.iter().max().map_or(1.0, |&nodes| nodes as f64);
    let axes =
        Axes { x: ("degree", first - 1.0..last + 1.0), y: ("nodes".to_owned(), 0.0..most * 1.05), digits: 0 };
    let bars = degrees.iter().enumerate().filter(|&(_, &nodes)| nodes > 0).map(|(degree, &nodes)| {
        let degree = degree as f64;
        Rectangle::new([(degree - 0.4, 0.0), (degree + 0.4, nodes as f64)], COLOURS[0].filled())
    });
    plot!(axes, bars)
}

/// Plots recall by beam.
pub(super) fn recall(search: &SearchQuality) -> Drawn {
    let points = || search.beams.iter().map(|at| (at.beam as f64, at.recall));
    let widest = points().map(|point| point.0).fold(1.0, f64::max);
    let (low, high) = range_of(points().map(|point| point.1));
    let axes = Axes {
        x: ("beam", 0.0..widest * 1.05),
        y: (format!("recall@{}", search.k), low..high),
        digits: if high - low < 0.02 { 4 } else { 2 },
    };
    plot!(
        axes,
        LineSeries::new(points(), COLOURS[0].stroke_width(2)),
        points().map(|point| Circle::new(point, 4, COLOURS[0].filled()))
    )
}
