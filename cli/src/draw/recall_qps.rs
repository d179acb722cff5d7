//! Plots of recall against throughput.

use std::path::Path;

use tagore::{Evaluation, Result};

use super::chart::{
    Area, Axis, COLOURS, Chart, Head, Key, Pixel, SHAPES, Size, check_finite, line, mark, text, text_width,
};
use super::scale::Scale;
use crate::output::grouped;

/// The size of a plot of its own.
const SIZE: Size = Size { width: 640.0, plot: 400.0 };

/// A line in a plot.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Series {
    /// The name in the legend.
    pub name: String,
    /// Points in the order of the line.
    pub points: Vec<Point>,
}

/// A point of a line: the results of searches at one beam.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    /// The beam, written beside the point.
    pub beam: usize,
    /// Recall, 0 to 1.
    pub recall: f64,
    /// Queries per second.
    pub qps: f64,
}

impl Series {
    /// A line through `evaluations`.
    pub(crate) fn new(name: impl Into<String>, evaluations: &[Evaluation]) -> Self {
        let points =
            evaluations.iter().map(|&Evaluation { beam, recall, qps, .. }| Point { beam, recall, qps });
        Self { name: name.into(), points: points.collect() }
    }
}

/// Writes an SVG plot of recall@`k`, on a logit axis, against queries per second, on a logarithmic
/// axis, with one line per series. Up and right is better. A recall of 1 stands at the right edge,
/// beyond a gap.
///
/// # Errors
/// If a point is not finite, or the file cannot be written.
pub(crate) fn recall_qps_plot(
    path: impl AsRef<Path>,
    title: &str,
    k: usize,
    series: &[Series],
) -> Result<()> {
    draw(title, k, series, SIZE)?.save(path.as_ref())
}

/// Draws the plot of [`recall_qps_plot`], this wide and with a plot area this high.
pub(crate) fn draw<'a>(title: &str, k: usize, series: &'a [Series], size: Size) -> Result<Chart> {
    for Series { name, points } in series {
        check_finite(name, points.iter().flat_map(|point| [point.recall, point.qps]))?;
    }
    let points = || series.iter().flat_map(|series| &series.points);
    let x = Scale::logit(points().map(|point| point.recall));
    let y = Scale::log(points().map(|point| point.qps));
    let key = |(index, series): (usize, &'a Series)| Key {
        colour: index % COLOURS,
        shape: SHAPES[index % SHAPES.len()],
        name: &series.name,
    };
    let keys: Vec<Key<'a>> = series.iter().enumerate().map(key).collect();
    let legend = if keys.len() > 1 { &keys[..] } else { &[] };
    let head = Head { title: title.to_owned(), description: description(k, series), size };
    let (across, up) =
        (Axis::across(format!("recall@{k}, logit scale"), &x), Axis::up("queries per second", &y));
    let mut chart = Chart::new(head, legend, &across, &up);
    x.gaps().for_each(|place| chart.add_break(place));
    let place = |point: &Point| chart.at(x.place(point.recall), y.place(point.qps));
    let lines: Vec<Vec<Pixel>> =
        series.iter().map(|series| series.points.iter().map(place).collect()).collect();
    let mut labels = Labels::new(chart.area, &lines);
    for (key, places) in keys.iter().zip(&lines) {
        chart.add(&line(key.colour, places));
    }
    for (key, (series, places)) in keys.iter().zip(series.iter().zip(&lines)) {
        for (point, &place) in series.points.iter().zip(places) {
            chart.add(&mark(
                key.colour,
                key.shape,
                place,
                &format!("{}, {}", series.name, in_words(k, point)),
            ));
        }
    }
    for (key, (series, places)) in keys.iter().zip(series.iter().zip(&lines)) {
        for (point, &place) in series.points.iter().zip(places) {
            chart.add(&labels.beside(place, &point.beam.to_string(), key.colour));
        }
    }
    Ok(chart)
}

fn description(k: usize, series: &[Series]) -> String {
    let lines = series.iter().map(|Series { name, points }| {
        let points: Vec<String> = points.iter().map(|point| in_words(k, point)).collect();
        format!(" {name}: {}.", points.join("; "))
    });
    format!("Recall against queries per second; up and right is better.{}", lines.collect::<String>())
}

fn in_words(k: usize, Point { beam, recall, qps }: &Point) -> String {
    format!("beam {beam}: recall@{k} {recall:.4}, {} queries per second", grouped(qps.round()))
}

/// Places of labels beside points, free of lines, marks and other labels.
struct Labels {
    area: Area,
    taken: Vec<Area>,
}

impl Labels {
    /// Text size, and height of a line.
    const FONT: f64 = 13.0;
    const HEIGHT: f64 = 13.0;

    /// Takes the places of `lines` and of the marks on them.
    fn new(area: Area, lines: &[Vec<Pixel>]) -> Self {
        /// Half the side of a mark, and the distance of the samples of a line.
        const MARK: f64 = 5.0;
        const SAMPLE: f64 = 4.0;
        let square = |x: f64, y: f64, half: f64| Area(x - half, y - half, 2.0 * half, 2.0 * half);
        let mut taken: Vec<Area> = lines.iter().flatten().map(|&Pixel(x, y)| square(x, y, MARK)).collect();
        for pair in lines.iter().flat_map(|line| line.windows(2)) {
            let Pixel(x, y) = pair[0];
            let (dx, dy) = (pair[1].0 - x, pair[1].1 - y);
            let samples = (dx.hypot(dy) / SAMPLE) as usize;
            let at = |sample: usize| sample as f64 / samples.max(1) as f64;
            taken.extend((0..samples).map(|sample| square(x + dx * at(sample), y + dy * at(sample), 1.0)));
        }
        let Area(left, top, width, height) = area;
        Self { area: Area(left, top, width + 24.0, height), taken }
    }

    /// A label beside a point, or nothing where no place is free.
    fn beside(&mut self, Pixel(x, y): Pixel, label: &str, colour: usize) -> String {
        let (width, height) = (text_width(label, Self::FONT), Self::HEIGHT);
        let (left, centre, right) = (x - width - 6.0, x - width / 2.0, x + 6.0);
        let (above, middle, below) = (y - height - 6.0, y - height / 2.0, y + 6.0);
        let places = [
            (right, above),
            (left, below),
            (right, middle),
            (left, middle),
            (centre, above),
            (centre, below),
            (right, below),
            (left, above),
        ];
        let mut areas = places.into_iter().map(|(left, top)| Area(left, top, width, height));
        // Neighbouring labels read as one number without a space between them.
        let is_free = |&Area(left, top, width, height): &Area| {
            let spaced = Area(left - 2.0, top, width + 4.0, height);
            self.area.contains(&spaced) && !self.taken.iter().any(|other| spaced.overlaps(other))
        };
        let Some(free) = areas.find(is_free) else { return String::new() };
        self.taken.push(free);
        let attributes = format!(" class=\"beside c{colour}\" text-anchor=\"middle\"");
        text(Pixel(free.0 + width / 2.0, free.1 + height - 2.0), &attributes, label)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tagore::Error;

    fn line(points: &[(f64, f64)]) -> Series {
        let points = points.iter().map(|&(recall, qps)| Point { beam: 20, recall, qps });
        Series { name: "nsg".to_owned(), points: points.collect() }
    }

    #[test]
    fn any_data_can_be_drawn() {
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
            let svg = draw("title", 10, &series, SIZE).unwrap().inline();
            assert!(
                svg.contains("</svg>") && svg.contains("recall@10") && !svg.contains("NaN"),
                "{series:?}"
            );
        }
    }

    #[test]
    fn beams_stand_beside_their_points() {
        let beams = [10, 20, 50, 100];
        let points =
            beams.map(|beam| Point { beam, recall: 1.0 - 1.0 / beam as f64, qps: 1e5 / beam as f64 });
        let series = Series { name: "nsg".to_owned(), points: points.to_vec() };
        let svg = draw("title", 10, &[series], SIZE).unwrap().inline();
        for beam in beams {
            assert_eq!(svg.matches(&format!(">{beam}</text>")).count(), 1, "{beam}: {svg}");
        }
    }

    // An axis to infinity made labels without end.
    #[test]
    fn infinite_points_are_refused_with_their_series() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plot.svg");
        let infinite = [
            (f64::INFINITY, 1.0),
            (0.5, f64::INFINITY),
            (0.5, f64::NEG_INFINITY),
            (f64::NAN, 1.0),
            (0.5, f64::NAN),
        ];
        for bad in infinite {
            let series = [("good", (0.5, 1.0)), ("bad", bad)]
                .map(|(name, point)| Series { name: name.to_owned(), ..line(&[(0.4, 2.0), point]) });
            let error = recall_qps_plot(&path, "title", 10, &series).unwrap_err();
            assert!(matches!(&error, Error::Mismatch { what, .. } if what == "plot of bad"), "{error}");
            assert!(!path.exists());
        }
    }
}
