//! A chart as SVG: title, legend, axes, and a plot area for marks. It describes itself to screen
//! readers, and follows the light or dark scheme of its reader.

use std::path::Path;

use super::scale::{Scale, Tick};
use tagore::{Error, Result, write_file};
use tagore_text::one_line;

/// Styles of charts: once in each file, or in the page around several.
pub(crate) const STYLE: &str = "\
.chart { color-scheme: light dark; max-width: 100%; height: auto; font: 15px system-ui, sans-serif }
.chart text { fill: #3c3c3c } .chart .paper { fill: #fff } .chart .axis { stroke: #8a8a8a }
.chart .grid { stroke: #e4e4e4 } .chart .caption { font-size: 17px; font-weight: 600 }
.chart .line { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round }
.chart .mark { fill: currentColor }
.chart .beside { font-size: 13px; fill: currentColor; stroke: #fff; stroke-width: 3; paint-order: stroke }
.c0 { color: #0068a8 } .c1 { color: #b84a00 } .c2 { color: #007a5a } .c3 { color: #a8417f }
.c4 { color: #806000 } .c5 { color: #5b5bd6 } .c6 { color: #5a5a5a } .c7 { color: #7a4a2a }
.c8 { color: #101010 } .c9 { color: #5f7a00 }
@media (prefers-color-scheme: dark) {
.chart text { fill: #e2e2e2 } .chart .paper { fill: #14171c } .chart .axis { stroke: #7d828a }
.chart .grid { stroke: #2c3138 } .chart .beside { fill: currentColor; stroke: #14171c }
.c0 { color: #56b4e9 } .c1 { color: #ff8f4d } .c2 { color: #34c79a } .c3 { color: #ea9ccb }
.c4 { color: #eec04d } .c5 { color: #a5a5ff } .c6 { color: #b4b4b4 } .c7 { color: #cba37e }
.c8 { color: #f4f4f4 } .c9 { color: #c3d94e }
}";

/// Number of colours: the classes `c0` and on of [`STYLE`].
pub(crate) const COLOURS: usize = 10;

/// Outlines of marks around (0, 0). Readers who cannot tell colours apart can tell these.
pub(crate) const SHAPES: [&str; 7] = [
    "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0z",
    "M-4-4h8v8h-8z",
    "M0-5.5l5 9h-10z",
    "M0-6l6 6l-6 6l-6-6z",
    "M0 5.5l5-9h-10z",
    "M-5-1.5h3.5v-3.5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5z",
    "M-5-3l2-2l3 3l3-3l2 2l-3 3l3 3l-2 2l-3-3l-3 3l-2-2l3-3z",
];

/// Width of a character at most, as a share of the font's size.
const CHARACTER: f64 = 0.6;
const FONT: f64 = 15.0;
const CAPTION: f64 = 17.0;
/// Height of a line of text, and the space around the plot area.
const LINE: f64 = 22.0;
const SPACE: f64 = 14.0;

/// An entry of a legend.
pub(crate) struct Key<'a> {
    /// Number of the colour.
    pub colour: usize,
    /// Outline of the mark.
    pub shape: &'static str,
    pub name: &'a str,
}

/// An axis: its name with the unit, and its ticks.
pub(crate) struct Axis {
    pub name: String,
    pub ticks: Vec<Tick>,
}

impl Axis {
    /// The horizontal axis of `scale`.
    pub(crate) fn across(name: impl Into<String>, scale: &Scale) -> Self {
        Self { name: name.into(), ticks: scale.ticks(0.11) }
    }

    /// The vertical axis of `scale`.
    pub(crate) fn up(name: impl Into<String>, scale: &Scale) -> Self {
        Self { name: name.into(), ticks: scale.ticks(0.09) }
    }
}

/// The texts and sizes of a chart.
pub(crate) struct Head {
    /// The title; a page shows it itself.
    pub title: String,
    /// The content in words.
    pub description: String,
    pub size: Size,
}

/// A point: right of the left edge, and below the top.
#[derive(Clone, Copy)]
pub(crate) struct Pixel(pub f64, pub f64);

/// Width of a chart, and height of its plot area, in pixels.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub width: f64,
    pub plot: f64,
}

/// A rectangle: left, top, width, height in pixels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area(pub f64, pub f64, pub f64, pub f64);

impl Area {
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let apart = |a: f64, length: f64, b: f64, other: f64| a + length <= b || b + other <= a;
        !apart(self.0, self.2, other.0, other.2) && !apart(self.1, self.3, other.1, other.3)
    }

    pub(crate) fn contains(&self, other: &Self) -> bool {
        let within = |a: f64, length: f64, b: f64, other: f64| a <= b && b + other <= a + length;
        within(self.0, self.2, other.0, other.2) && within(self.1, self.3, other.1, other.3)
    }
}

/// A chart being drawn.
pub(crate) struct Chart {
    /// Everything before the caption.
    head: String,
    body: String,
    /// The plot area.
    pub area: Area,
    height: f64,
    width: f64,
    caption: Vec<String>,
}

impl Chart {
    /// Draws the axes, and the legend above the plot area.
    pub(crate) fn new(head: Head, legend: &[Key<'_>], x: &Axis, y: &Axis) -> Self {
        let Size { width, plot } = head.size;
        let widest = y.ticks.iter().map(|tick| text_width(&tick.label, FONT)).fold(0.0, f64::max);
        let left = widest + SPACE + 8.0;
        let area_width = (width - left - 2.0 * SPACE).max(1.0);
        let mut body = String::new();
        let keys = legend.iter().map(|key| text_width(key.name, FONT) + 2.0 * LINE);
        let mut top = 8.0;
        for (key, (row, at)) in legend.iter().zip(flow(keys, width - 2.0 * SPACE)) {
            let y = SPACE + LINE * (row as f64 + 0.5);
            body += &mark(key.colour, key.shape, Pixel(SPACE + at + 8.0, y), "");
            body += &text(Pixel(SPACE + at + 20.0, y + 5.0), "", key.name);
            top = SPACE + 6.0 + LINE * (row + 1) as f64;
        }
        if !y.name.is_empty() {
            body += &text(Pixel(SPACE, top + 16.0), "", &y.name);
            top += LINE + 4.0;
        }
        let area = Area(left, top + 4.0, area_width, plot);
        let (right, bottom) = (left + area_width, area.1 + plot);
        for Tick { place, label } in &y.ticks {
            let at = bottom - place * plot;
            body += &format!("<path class=\"grid\" d=\"M{left:.1} {at:.1}H{right:.1}\"/>\n");
            body += &text(Pixel(left - 8.0, at + 5.0), " text-anchor=\"end\"", label);
        }
        for Tick { place, label } in &x.ticks {
            let at = left + place * area_width;
            body += &format!("<path class=\"grid\" d=\"M{at:.1} {:.1}V{bottom:.1}\"/>\n", area.1);
            body += &text(Pixel(at, bottom + 20.0), " text-anchor=\"middle\"", label);
        }
        body += &format!("<path class=\"axis\" d=\"M{left:.1} {bottom:.1}H{right:.1}\"/>\n");
        let middle = left + area_width / 2.0;
        body += &text(Pixel(middle, bottom + 2.0 * LINE), " text-anchor=\"middle\"", &x.name);
        let Head { title, description, .. } = head;
        let caption = lines(&title, width - 2.0 * SPACE);
        let head = format!("<title>{}</title>\n<desc>{}</desc>\n", escaped(&title), escaped(&description));
        Self { head, body, area, height: bottom + 2.0 * LINE + SPACE, width, caption }
    }

    /// Pixels of a place: 0 is left or at the bottom, 1 is right or at the top.
    pub(crate) fn at(&self, x: f64, y: f64) -> Pixel {
        let Area(left, top, width, height) = self.area;
        Pixel(left + x * width, top + (1.0 - y) * height)
    }

    /// Marks a break of the horizontal axis.
    pub(crate) fn add_break(&mut self, place: f64) {
        let Pixel(x, y) = self.at(place, 0.0);
        self.body += &format!("<path class=\"axis\" d=\"M{:.1} {:.1}l6-12m5 0l-6 12\"/>\n", x - 5.5, y + 6.0);
    }

    /// Adds elements, which [`line`], [`mark`], [`bar`] and [`text`] make.
    pub(crate) fn add(&mut self, elements: &str) {
        self.body += elements;
    }

    /// The chart for a page with [`STYLE`], without its caption.
    pub(crate) fn inline(self) -> String {
        let Self { head, body, width, height, .. } = self;
        let size =
            format!("viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" height=\"{height:.0}\"");
        format!("<svg class=\"chart\" role=\"img\" {size}>\n{head}{body}</svg>")
    }

    /// The chart as a file of its own.
    fn file(self) -> String {
        let Self { head, body, width, caption, .. } = &self;
        let above = LINE * caption.len() as f64;
        let height = self.height + above;
        let rows = (1..).zip(caption);
        let caption: String = rows
            .map(|(row, line)| text(Pixel(SPACE, LINE * f64::from(row)), " class=\"caption\"", line))
            .collect();
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" role=\"img\" viewBox=\"0 0 {width:.0} {height:.0}\" \
             width=\"{width:.0}\" height=\"{height:.0}\">\n{head}<style>\n{STYLE}\n</style>\n\
             <rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n{caption}\
             <g transform=\"translate(0 {above:.0})\">\n{body}</g>\n</svg>\n"
        )
    }

    /// Writes the chart to a file, which appears complete or not at all.
    pub(crate) fn save(self, path: &Path) -> Result<()> {
        write_file(path, self.file().as_bytes())
    }
}

/// Checks that the coordinates of `name` are finite: an axis to infinity has labels without end.
pub(crate) fn check_finite(name: &str, coordinates: impl IntoIterator<Item = f64>) -> Result<()> {
    match coordinates.into_iter().find(|value| !value.is_finite()) {
        Some(value) => Err(Error::Mismatch {
            what: format!("plot of {name}"),
            found: value.to_string(),
            expected: "finite numbers".to_owned(),
        }),
        None => Ok(()),
    }
}

/// A line through `points` in pixels.
pub(crate) fn line(colour: usize, points: &[Pixel]) -> String {
    let points: Vec<String> = points.iter().map(|Pixel(x, y)| format!("{x:.1},{y:.1}")).collect();
    format!("<polyline class=\"line c{colour}\" points=\"{}\"/>\n", points.join(" "))
}

/// A mark; a pointer over it shows `tip`.
pub(crate) fn mark(colour: usize, shape: &str, Pixel(x, y): Pixel, tip: &str) -> String {
    format!(
        "<path class=\"mark c{colour}\" transform=\"translate({x:.1} {y:.1})\" d=\"{shape}\">{}</path>\n",
        title(tip)
    )
}

/// A filled rectangle; a pointer over it shows `tip`.
pub(crate) fn bar(colour: usize, Area(x, y, width, height): Area, tip: &str) -> String {
    format!(
        "<rect class=\"mark c{colour}\" x=\"{x:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{height:.1}\">{}</rect>\n",
        title(tip)
    )
}

fn title(tip: &str) -> String {
    if tip.is_empty() { String::new() } else { format!("<title>{}</title>", escaped(tip)) }
}

/// A line of text that begins at a point, or with other `attributes`.
pub(crate) fn text(Pixel(x, y): Pixel, attributes: &str, text: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\"{attributes}>{}</text>\n", escaped(text))
}

/// Width of a text at most, in pixels.
pub(crate) fn text_width(text: &str, font: f64) -> f64 {
    text.chars().count() as f64 * font * CHARACTER
}

/// Row and offset of items of these widths in rows of `room` pixels.
fn flow(widths: impl Iterator<Item = f64>, room: f64) -> impl Iterator<Item = (usize, f64)> {
    let (mut row, mut end) = (0, 0.0);
    widths.map(move |width| {
        if end > 0.0 && end + width > room {
            (row, end) = (row + 1, 0.0);
        }
        end += width;
        (row, end - width)
    })
}

/// The words of `text` in lines of `room` pixels.
fn lines(text: &str, room: f64) -> Vec<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let rows = flow(words.iter().map(|word| text_width(word, CAPTION) + CAPTION * CHARACTER), room);
    let mut lines: Vec<String> = Vec::new();
    for (word, (row, _)) in words.iter().zip(rows) {
        match lines.get_mut(row) {
            Some(line) => *line += &format!(" {word}"),
            None => lines.push((*word).to_owned()),
        }
    }
    lines
}

/// Escapes text for SVG and HTML.
pub(crate) fn escaped(text: &str) -> String {
    let text = one_line(text, 1 << 16);
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_hold_what_fits() {
        let rows: Vec<_> = flow([40.0, 50.0, 20.0, 200.0, 10.0].into_iter(), 100.0).collect();
        assert_eq!(rows, [(0, 0.0), (0, 40.0), (1, 0.0), (2, 0.0), (3, 0.0)]);
        assert_eq!(lines("a title of several words", 120.0), ["a title of", "several", "words"]);
    }
}
