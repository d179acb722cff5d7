//! The plot of degrees.

use super::chart::{Area, Axis, Chart, Head, Pixel, Size, bar};
use super::scale::Scale;
use crate::output::grouped;

/// Draws the number of nodes of each degree, 0 and on.
pub(crate) fn draw(degrees: &[u64], size: Size) -> Chart {
    let last = degrees.iter().rposition(|&nodes| nodes > 0).unwrap_or(0);
    let first = degrees.iter().position(|&nodes| nodes > 0).unwrap_or(0);
    let most = degrees.iter().copied().max().unwrap_or(0).max(1);
    // At least four wide: the bar of a single degree is no wall.
    let (first, last) = (first.saturating_sub(2), last + 2);
    let x = Scale::counts(first as f64 - 0.5, last as f64 + 0.5);
    let y = Scale::counts(0.0, most as f64 * 1.05);
    let at = |degree: usize| format!("degree {degree}: {} nodes", grouped(degrees[degree]));
    let used = || (first..degrees.len().min(last + 1)).filter(|&degree| degrees[degree] > 0);
    let description = used().map(at).collect::<Vec<_>>().join("; ");
    let head = Head { title: "Nodes by degree".to_owned(), description, size };
    let mut chart = Chart::new(head, &[], &Axis::across("degree", &x), &Axis::up("nodes", &y));
    for degree in used() {
        let place = |half: f64, nodes: u64| chart.at(x.place(degree as f64 + half), y.place(nodes as f64));
        let (Pixel(left, top), Pixel(right, bottom)) = (place(-0.4, degrees[degree]), place(0.4, 0));
        chart.add(&bar(0, Area(left, top, right - left, bottom - top), &at(degree)));
    }
    chart
}
