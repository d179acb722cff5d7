//! Timeline plots of builds: one lane per thread, as SVG.

use std::path::Path;

use plotters::coord::ranged1d::{IntoSegmentedCoord, SegmentValue};
use plotters::prelude::*;

use super::recall_qps::{GRID, TEXT, check_finite, save_svg};
use crate::Result;
use crate::outofcore::{Task, TaskKind};

const WIDTH: u32 = 1100;
/// Height of a lane, and of the space around the lanes.
const LANE: u32 = 34;
const AROUND: u32 = 150;

/// Colours that colour-blind readers can tell apart (Okabe and Ito 2008).
fn colour(kind: TaskKind) -> RGBColor {
    match kind {
        TaskKind::Partition => RGBColor(90, 90, 90),
        TaskKind::Read => RGBColor(86, 180, 233),
        TaskKind::Copy => RGBColor(240, 228, 66),
        TaskKind::Descent => RGBColor(0, 114, 178),
        TaskKind::Prune => RGBColor(0, 158, 115),
        TaskKind::Lists => RGBColor(204, 121, 167),
        TaskKind::Spill => RGBColor(120, 94, 60),
        TaskKind::Merge => RGBColor(230, 159, 0),
        TaskKind::Checkpoint => RGBColor(0, 0, 0),
        TaskKind::Write => RGBColor(213, 94, 0),
    }
}

/// Writes an SVG of the tasks of a build over seconds. Each thread has a lane; lanes are ordered by
/// their first task.
///
/// # Errors
/// If the start or end of a task is not finite, or the file cannot be written.
pub fn timeline_plot(path: impl AsRef<Path>, title: &str, tasks: &[Task]) -> Result<()> {
    save_svg(path.as_ref(), |svg| draw(svg, title, tasks))
}

/// Draws the plot of [`timeline_plot`] into `svg`.
pub(super) fn draw(svg: &mut String, title: &str, tasks: &[Task]) -> Result<(), Box<dyn std::error::Error>> {
    tasks.iter().try_for_each(|task| check_finite("tasks", &task.thread, &[(task.begin, task.end)]))?;
    let mut threads: Vec<&str> = Vec::new();
    for task in tasks {
        if !threads.contains(&task.thread.as_str()) {
            threads.push(&task.thread);
        }
    }
    let lanes = threads.len().max(1);
    let end = tasks.iter().map(|task| task.end).fold(1e-3, f64::max);
    let root = SVGBackend::with_string(svg, (WIDTH, AROUND + LANE * lanes as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let font = |size: i32| ("sans-serif", size).into_font().color(&TEXT);
    let mut chart = ChartBuilder::on(&root)
        .margin(16)
        .caption(title, font(18))
        .x_label_area_size(40)
        .y_label_area_size(90)
        .build_cartesian_2d(0.0..end, (0..lanes).into_segmented())?;
    let label = |value: &SegmentValue<usize>| match value {
        // The first thread is on top.
        SegmentValue::CenterOf(lane) => threads.iter().rev().nth(*lane).unwrap_or(&"").to_string(),
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(lanes)
        .y_label_formatter(&label)
        .x_desc("seconds")
        .label_style(font(13))
        .axis_desc_style(font(14))
        .bold_line_style(GRID)
        .light_line_style(WHITE)
        .axis_style(GRID)
        .draw()?;
    for kind in TaskKind::ALL {
        let of_kind = || tasks.iter().filter(|task| task.kind == kind);
        if of_kind().next().is_none() {
            continue;
        }
        let colour = colour(kind);
        let rectangles = of_kind().filter_map(|task| {
            let lane = threads.iter().rev().position(|&thread| thread == task.thread)?;
            let corners =
                [(task.begin, SegmentValue::Exact(lane)), (task.end, SegmentValue::Exact(lane + 1))];
            let mut rectangle = Rectangle::new(corners, colour.filled());
            rectangle.set_margin(4, 4, 0, 0);
            Some(rectangle)
        });
        chart
            .draw_series(rectangles)?
            .label(kind.name())
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 16, y + 5)], colour.filled()));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(GRID)
        .label_font(font(13))
        .draw()?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(kind: TaskKind, thread: &str, begin: f64, end: f64) -> Task {
        Task { kind, thread: thread.to_owned(), cluster: None, begin, end, bytes: 0 }
    }

    #[test]
    fn any_tasks_draw() {
        for tasks in [
            vec![],
            vec![task(TaskKind::Read, "reader 0", 0.0, 0.0)],
            vec![task(TaskKind::Read, "reader 0", 0.0, 1e300)],
            vec![task(TaskKind::Read, "reader 0", 0.0, 1.5), task(TaskKind::Merge, "cuda:0 a", 1.0, 3.5)],
        ] {
            let mut svg = String::new();
            draw(&mut svg, "title", &tasks).unwrap();
            assert!(svg.contains("</svg>") && !svg.contains("NaN"));
            assert!(tasks.iter().all(|task| svg.contains(task.kind.name()) && svg.contains(&task.thread)));
        }
        // An infinite axis never ran out of labels.
        let folder = tempfile::tempdir().unwrap();
        for end in [f64::INFINITY, f64::NAN] {
            let tasks = [task(TaskKind::Read, "reader 0", 0.0, end)];
            let error = timeline_plot(folder.path().join("x.svg"), "title", &tasks).unwrap_err().to_string();
            assert!(error.contains("in reader 0") && error.contains("finite"), "{error}");
        }
    }
}
