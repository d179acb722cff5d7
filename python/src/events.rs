//! Events of the library, for Python's `logging`.

use std::fmt::{self, Write};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU8, Ordering};

use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Metadata, Subscriber};

use crate::process::process;

/// Maximum number of events that wait.
const WAITING: usize = 10_000;

/// An event: its level in Python's numbers, and its text.
pub(crate) struct Event {
    level: u8,
    text: String,
}

/// The least level that the logger takes, in Python's numbers.
static MIN_LEVEL: AtomicU8 = AtomicU8::new(u8::MAX);

/// Keeps events until a thread with Python's lock hands them on: threads of the library never wait
/// for it.
struct Collector;

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && level(metadata) >= MIN_LEVEL.load(Ordering::Relaxed)
    }

    fn register_callsite(&self, _: &'static Metadata<'static>) -> tracing::subscriber::Interest {
        // The level of a logger may change.
        tracing::subscriber::Interest::sometimes()
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let event = Event { level: level(event.metadata()), text: text.message + &text.fields };
        let mut events = process().events.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() < WAITING {
            events.push(event);
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// A level in Python's numbers; TRACE is 5.
fn level(metadata: &Metadata<'_>) -> u8 {
    match *metadata.level() {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        Level::DEBUG => 10,
        Level::TRACE => 5,
    }
}

/// The message of an event, and its fields.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // A string is written without errors.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

fn logger(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    py.import("logging")?.call_method1("getLogger", ("tagore_ann",))
}

/// Begins to collect the events that the logger `tagore_ann` takes now.
pub(crate) fn collect(py: Python<'_>) -> PyResult<()> {
    let least: u64 = logger(py)?.call_method0("getEffectiveLevel")?.extract()?;
    MIN_LEVEL.store(u8::try_from(least).unwrap_or(u8::MAX), Ordering::Relaxed);
    // The command has a log of its own, and keeps it.
    let _ = tracing::subscriber::set_global_default(Collector);
    Ok(())
}

/// Hands the waiting events to the logger.
pub(crate) fn hand_on(py: Python<'_>) -> PyResult<()> {
    let events = std::mem::take(&mut *process().events.lock().unwrap_or_else(PoisonError::into_inner));
    if events.is_empty() {
        return Ok(());
    }
    let logger = logger(py)?;
    for Event { level, text } in events {
        // The text is an argument: it may hold a percent sign.
        logger.call_method1("log", (level, "%s", text))?;
    }
    Ok(())
}
