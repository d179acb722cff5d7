//! Plots of recall against throughput, as SVG.

use std::path::Path;

use plotters::prelude::*;

use crate::atomic_file::AtomicFile;
use crate::{Error, Result};

/// A line in a plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// Points (recall, queries per second), in the order of the line.
    pub points: Vec<(f64, f64)>,
}

const SIZE: (u32, u32) = (880, 560);
pub(crate) const TEXT: RGBColor = RGBColor(60, 60, 60);
pub(crate) const GRID: RGBColor = RGBColor(228, 228, 228);

/// Colours that colour-blind readers can tell apart (Okabe and Ito 2008).
pub(crate) const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
];

/// Writes an SVG plot of recall@`k` against queries per second on a logarithmic axis, one line per
/// series. Up and right is better.
///
/// # Errors
/// If a point is not finite, or the file cannot be written.
pub fn recall_qps_plot(path: impl AsRef<Path>, title: &str, k: usize, series: &[Series]) -> Result<()> {
    save_svg(path.as_ref(), |svg| draw(svg, title, k, series))
}

/// Checks that points are finite: an axis to infinity would have endless labels.
pub(crate) fn check_finite(what: &'static str, name: &str, points: &[(f64, f64)]) -> Result<()> {
    match points.iter().find(|(x, y)| !x.is_finite() || !y.is_finite()) {
        Some((x, y)) => Err(Error::argument(what, format_args!("({x}, {y}) in {name}"), "finite numbers")),
        None => Ok(()),
    }
}

/// Renders `draw` and writes the SVG.
pub(crate) fn save_svg(
    path: &Path,
    draw: impl FnOnce(&mut String) -> std::result::Result<(), Box<dyn std::error::Error>>,
) -> Result<()> {
    let mut svg = String::new();
    draw(&mut svg).map_err(|error| match error.downcast::<Error>() {
        Ok(error) => *error,
        Err(error) => Error::io(path)(std::io::Error::other(error.to_string())),
    })?;
    let mut file = AtomicFile::create(path)?;
    file.write_all(svg.as_bytes())?;
    file.commit()
}

fn draw(
    svg: &mut String,
    title: &str,
    k: usize,
    series: &[Series],
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    series.iter().try_for_each(|series| check_finite("series", &series.name, &series.points))?;
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let font = |size: i32| ("sans-serif", size).into_font().color(&TEXT);
    let (recalls, rates) = (recall_range(series), rate_range(series));
    let mut chart = ChartBuilder::on(&root)
        .margin(18)
        .caption(title, ("sans-serif", 20).into_font().color(&TEXT))
        .x_label_area_size(48)
        .y_label_area_size(76)
        .build_cartesian_2d(
            recalls.0..recalls.1,
            (rates.0..rates.1).log_scale().with_key_points(ticks(rates)),
        )?;
    let digits = if recalls.1 - recalls.0 < 0.02 { 3 } else { 2 };
    chart
        .configure_mesh()
        .x_desc(format!("recall@{k}"))
        .y_desc("queries per second")
        .x_labels(8)
        .y_labels(8)
        .x_label_formatter(&|recall| format!("{recall:.digits$}"))
        .y_label_formatter(&|rate| thousands(*rate))
        .label_style(font(14))
        .axis_desc_style(font(16))
        .bold_line_style(GRID)
        .light_line_style(WHITE)
        .axis_style(GRID)
        .draw()?;
    for (series, colour) in series.iter().zip(COLOURS.into_iter().cycle()) {
        let within =
            |&(recall, rate): &(f64, f64)| (recall.clamp(recalls.0, recalls.1), rate.clamp(rates.0, rates.1));
        let points = || series.points.iter().map(within);
        let line = LineSeries::new(points(), colour.stroke_width(2));
        chart
            .draw_series(line)?
            .label(&series.name)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 22, y)], colour.stroke_width(3)));
        chart.draw_series(points().map(|point| Circle::new(point, 4, colour.filled())))?;
    }
    // A faster index loses throughput to the right, so the upper right corner is the emptiest.
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(GRID)
        .label_font(font(15))
        .draw()?;
    root.present()?;
    Ok(())
}

/// The range of the recall axis.
fn recall_range(series: &[Series]) -> (f64, f64) {
    range_of(series.iter().flat_map(|s| &s.points).map(|point| point.0))
}

/// The range of an axis of recalls: the data plus a margin, at most a little past 1.
pub(crate) fn range_of(recalls: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let (low, high) = (recalls.clone().fold(1.0, f64::min), recalls.fold(0.0, f64::max).max(0.01));
    let margin = ((high - low) * 0.06).max(0.001);
    ((low - margin).max(-0.01), (high + margin).min(1.002))
}

/// The range of the throughput axis: the data plus a margin, at least a factor of two. Values
/// without a place on the logarithmic axis, or too far out, are drawn at its end.
fn rate_range(series: &[Series]) -> (f64, f64) {
    let rates = || series.iter().flat_map(|s| &s.points).map(|point| point.1.clamp(1e-3, 1e15));
    let (low, high) = (rates().fold(f64::INFINITY, f64::min), rates().fold(0.0, f64::max));
    if low > high { (1.0, 10.0) } else { (low / 1.3, high * 1.5) }
}

/// The ticks of a range: 1, 2 and 5 times powers of ten.
fn ticks((low, high): (f64, f64)) -> Vec<f64> {
    let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let steps = decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|step| step * 10f64.powi(decade)));
    steps.filter(|tick| (low..=high).contains(tick)).collect()
}

/// Formats 1500 as 1.5k, 2000000 as 2M.
fn thousands(value: f64) -> String {
    let (scaled, unit) = match value {
        v if v >= 1e6 => (v / 1e6, "M"),
        v if v >= 1e3 => (v / 1e3, "k"),
        v => (v, ""),
    };
    let digits = usize::from(scaled < 10.0 && (scaled - scaled.round()).abs() > 0.05);
    format!("{scaled:.digits$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_data_can_be_drawn() {
        let line = |points: &[(f64, f64)]| Series { name: "nsg".to_owned(), points: points.to_vec() };
        for series in [
            vec![],
            vec![line(&[])],
            vec![line(&[(1.0, 1000.0)])],
            vec![line(&[(1.0, 1000.0), (1.0, 500.0)]), line(&[])],
            vec![line(&[(0.0, 0.0), (0.5, 1e9)])],
            vec![line(&[(0.5, 0.0)])],
            vec![line(&[(0.5, 10.0); 3])],
            vec![line(&[(-1e300, -1e300), (1e300, f64::MAX), (0.5, f64::MIN_POSITIVE)])],
        ] {
            let mut svg = String::new();
            draw(&mut svg, "title", 10, &series).unwrap();
            assert!(
                svg.contains("</svg>") && svg.contains("recall@10") && !svg.contains("NaN"),
                "{series:?}"
            );
        }
    }

    // An axis to infinity made labels without end.
    #[test]
    fn infinite_points_are_refused_with_their_series() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plot.svg");
        for bad in [
            (f64::INFINITY, 1.0),
            (0.5, f64::INFINITY),
            (0.5, f64::NEG_INFINITY),
            (f64::NAN, 1.0),
            (0.5, f64::NAN),
        ] {
            let series = [("good", (0.5, 1.0)), ("bad", bad)]
                .map(|(name, point)| Series { name: name.to_owned(), points: vec![(0.4, 2.0), point] });
            let error = recall_qps_plot(&path, "title", 10, &series).unwrap_err();
            assert!(
                matches!(&error, Error::Argument { parameter: "series", found, .. } if found.ends_with("in bad")),
                "{error}"
            );
            assert!(!path.exists());
        }
    }

    #[test]
    fn rates_are_short() {
        for (value, text) in [(950.0, "950"), (1500.0, "1.5k"), (20_000.0, "20k"), (3e6, "3M")] {
            assert_eq!(thousands(value), text);
        }
    }
}
