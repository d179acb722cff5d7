//! Timeline plots of builds: one lane per thread.

use std::path::Path;

use tagore::Result;
use tagore::outofcore::{Task, TaskKind};

use super::chart::{Area, Axis, COLOURS, Chart, Head, Key, Pixel, SHAPES, Size, bar, check_finite};
use super::scale::{Scale, Tick};
use crate::output::grouped;

/// Width of the plot and height of a lane, in pixels.
const WIDTH: f64 = 760.0;
const LANE: f64 = 36.0;

/// Writes an SVG of the tasks of a build over seconds. Each thread has a lane; lanes are ordered by
/// their first task.
///
/// # Errors
/// If the start or end of a task is not finite, or the file cannot be written.
pub(crate) fn timeline_plot(path: impl AsRef<Path>, title: &str, tasks: &[Task]) -> Result<()> {
    draw(title, tasks)?.save(path.as_ref())
}

/// Draws the plot of [`timeline_plot`].
pub(crate) fn draw(title: &str, tasks: &[Task]) -> Result<Chart> {
    tasks.iter().try_for_each(|task| check_finite(&task.thread, [task.begin, task.end]))?;
    let mut threads: Vec<&str> = Vec::new();
    for task in tasks {
        if !threads.contains(&task.thread.as_str()) {
            threads.push(&task.thread);
        }
    }
    let lanes = threads.len().max(1) as f64;
    let end = tasks.iter().map(|task| task.end).fold(1e-3, f64::max);
    let seconds = Scale::linear(0.0, end);
    // The first thread is on top.
    let centre = |lane: usize| 1.0 - (lane as f64 + 0.5) / lanes;
    let names = threads.iter().enumerate();
    let ticks = names.map(|(lane, name)| Tick { place: centre(lane), label: (*name).to_owned() }).collect();
    let head = Head {
        title: title.to_owned(),
        description: description(tasks),
        size: Size { width: WIDTH, plot: LANE * lanes },
    };
    let shape = SHAPES[1];
    let kinds =
        || TaskKind::ALL.into_iter().enumerate().filter(|(_, kind)| tasks.iter().any(|t| t.kind == *kind));
    let legend: Vec<_> =
        kinds().map(|(colour, kind)| Key { colour: colour % COLOURS, shape, name: kind.name() }).collect();
    let lanes = Axis { name: String::new(), ticks };
    let mut chart = Chart::new(head, &legend, &Axis::across("seconds", &seconds), &lanes);
    for (colour, kind) in kinds() {
        for task in tasks.iter().filter(|task| task.kind == kind) {
            let lane = threads.iter().position(|&thread| thread == task.thread).unwrap_or(0);
            let Pixel(left, y) = chart.at(seconds.place(task.begin), centre(lane));
            let Pixel(right, _) = chart.at(seconds.place(task.end), 0.0);
            let area = Area(left, y - LANE * 0.38, (right - left).max(0.0), LANE * 0.76);
            chart.add(&bar(colour % COLOURS, area, &tip(task)));
        }
    }
    Ok(chart)
}

fn tip(Task { kind, thread, cluster, begin, end, .. }: &Task) -> String {
    let cluster = cluster.map_or(String::new(), |cluster| format!(" of cluster {cluster}"));
    format!("{}{cluster}, {thread}: {begin:.3} to {end:.3} s", kind.name())
}

fn description(tasks: &[Task]) -> String {
    let sums = TaskKind::ALL.into_iter().filter_map(|kind| {
        let of_kind = || tasks.iter().filter(|task| task.kind == kind);
        let seconds: f64 = of_kind().map(|task| task.end - task.begin).sum();
        let count = of_kind().count();
        (count > 0).then(|| format!(" {}: {seconds:.3} s in {} tasks.", kind.name(), grouped(count)))
    });
    format!("Tasks over seconds, one lane per thread.{}", sums.collect::<String>())
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
            let svg = draw("title", &tasks).unwrap().inline();
            assert!(svg.contains("</svg>") && !svg.contains("NaN"));
            assert!(tasks.iter().all(|task| svg.contains(task.kind.name()) && svg.contains(&task.thread)));
        }
        // An infinite axis never ran out of labels.
        let folder = tempfile::tempdir().unwrap();
        for end in [f64::INFINITY, f64::NAN] {
            let tasks = [task(TaskKind::Read, "reader 0", 0.0, end)];
            let error = timeline_plot(folder.path().join("x.svg"), "title", &tasks).unwrap_err().to_string();
            assert!(error.contains("plot of reader 0") && error.contains("finite"), "{error}");
        }
    }
}
