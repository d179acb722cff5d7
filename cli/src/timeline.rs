//! The stages of a command by the clock, for `--timeline`. The library reports the end of every
//! stage as an event; the recorder keeps its thread and its times.

use std::fmt::Debug;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

use tagore::outofcore::{Task, TaskKind};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::draw::timeline_plot;
use crate::error::Result;

/// The tasks since the start of the recording; none unless a command records.
static RECORDING: OnceLock<Recording> = OnceLock::new();

struct Recording {
    began: Instant,
    tasks: Mutex<Vec<Task>>,
}

/// Starts the recording, and returns the layer that records.
pub(crate) fn record() -> Recorder {
    RECORDING.get_or_init(|| Recording { began: Instant::now(), tasks: Mutex::default() });
    Recorder
}

/// Records the ends of stages.
pub(crate) struct Recorder;

/// The fields of the end of a stage.
#[derive(Default)]
struct Ended {
    stage: String,
    seconds: Option<f64>,
}

impl Visit for Ended {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "stage" {
            value.clone_into(&mut self.stage);
        }
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        if field.name() == "seconds" {
            self.seconds = Some(value);
        }
    }

    fn record_debug(&mut self, _field: &Field, _value: &dyn Debug) {}
}

/// The kind of a stage.
fn kind(stage: &str) -> TaskKind {
    match stage {
        "open" => TaskKind::Open,
        "compile" => TaskKind::Compile,
        "check" => TaskKind::Read,
        "copy" => TaskKind::Copy,
        "cells" | "join" | "refine" | "all pairs" => TaskKind::Descent,
        "prune" => TaskKind::Prune,
        "write" => TaskKind::Write,
        _ => TaskKind::Measure,
    }
}

impl<S: Subscriber> Layer<S> for Recorder {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut ended = Ended::default();
        event.record(&mut ended);
        if let (Some(seconds), false) = (ended.seconds, ended.stage.is_empty()) {
            add(kind(&ended.stage), seconds);
        }
    }
}

/// Records a task of this thread that has just ended; does nothing unless a command records.
pub(crate) fn add(kind: TaskKind, seconds: f64) {
    let Some(Recording { began, tasks }) = RECORDING.get() else { return };
    let end = began.elapsed().as_secs_f64();
    let thread = std::thread::current().name().unwrap_or("thread").to_owned();
    let task = Task { kind, thread, cluster: None, begin: (end - seconds).max(0.0), end, bytes: 0 };
    tasks.lock().unwrap_or_else(PoisonError::into_inner).push(task);
}

/// Draws the recorded tasks.
pub(crate) fn save(path: &Path, title: &str) -> Result<()> {
    let mut tasks = RECORDING.get().map_or_else(Vec::new, |recording| {
        recording.tasks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    });
    tasks.sort_by(|a, b| a.begin.total_cmp(&b.begin));
    Ok(timeline_plot(path, title, &tasks)?)
}
