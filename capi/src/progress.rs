//! Callbacks that watch and cancel long work.

use std::ffi::{c_char, c_void};
use std::ops::ControlFlow;

use tagore::{Progress, Update, check_room, start_threads};

use crate::pointers::{Context, Input, read_if, structs};
use crate::status::Result;

/// The progress of one stage, and of the work that it belongs to.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tagore_update {
    /// sizeof(tagore_update) of the library.
    pub size: usize,
    /// The name of the stage, such as "descent"; valid during the call.
    pub stage: *const c_char,
    /// Units of the stage done.
    pub done: u64,
    /// Units of the stage in total. A stage that stops early ends below.
    pub total: u64,
    /// The share of the whole work done, 0 to 1, by estimated times.
    pub fraction: f64,
}

/// Takes an update. Any result but 0 cancels the work, which then returns
/// TAGORE_ERROR_CANCELLED soon. Called from several threads at the same time.
pub type tagore_watch =
    Option<unsafe extern "C" fn(context: *mut c_void, update: *const tagore_update) -> i32>;

/// A callback for long work. A null pointer in its place watches nothing.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tagore_progress {
    /// sizeof(tagore_progress)
    pub size: usize,
    /// The callback; may be null.
    pub watch: tagore_watch,
    /// Handed to the callback.
    pub context: *mut c_void,
}

structs!(tagore_progress);

/// Bytes of the name of a stage, with the zero after it.
const STAGE: usize = 64;

/// Begins long work: its threads are started, if they are not. Returns the library's handle for a
/// callback.
pub(crate) fn watched(given: Input<'_, tagore_progress>) -> Result<Progress> {
    start_threads(None)?;
    check_room(0)?;
    let Some(tagore_progress { watch: Some(watch), context, .. }) = read_if(given)? else {
        return Ok(Progress::silent());
    };
    let context = Context(context);
    Ok(Progress::controlled(move |Update { stage, done, total, fraction }| {
        let mut name = [0; STAGE];
        stage.bytes().take(STAGE - 1).zip(&mut name).for_each(|(from, to)| *to = from);
        let size = size_of::<tagore_update>();
        let update = tagore_update { size, stage: name.as_ptr().cast(), done, total, fraction };
        // The whole of it, or the closure would hold the bare pointer.
        let context = &context;
        // SAFETY: the header says what the callback may do.
        let answer = unsafe { watch(context.0, &raw const update) };
        if answer == 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }))
}
