//! The C interface of `tagore`: `tagore.h`, `libtagore.so` and `libtagore.a`.
//!
//! Functions and types have the names of the header, which cbindgen makes of this crate
//! (`tests/header.rs`), with the comments here as its documentation. What a function does is the
//! library's; this crate turns pointers into values (`pointers.rs`), errors into statuses
//! (`status.rs`), and callbacks into the library's `Source`, `RowSink` and `Progress`.
#![expect(non_camel_case_types, reason = "the names of the header")]

// In the order of the header.
mod status;

mod pointers;
mod progress;
mod vectors;

mod builder;
mod knn_graph;
mod out_of_core;

mod index;

mod update;

mod live;

mod export;

mod id_set;
mod search;

use std::ffi::{CStr, c_char};

use tagore::start_threads;

use crate::status::{Failure, call, tagore_status};

/// The version of this interface: it grows with every addition. The shared library's name changes
/// with every change that breaks programs.
pub const TAGORE_API_VERSION: u32 = 1;

/// The version of the library, with its zero.
const VERSION: &[u8] = concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes();

/// The version of the library that runs, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn tagore_version() -> *const c_char {
    CStr::from_bytes_with_nul(VERSION).unwrap_or_default().as_ptr()
}

/// TAGORE_API_VERSION of the library that runs.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_api_version() -> u32 {
    TAGORE_API_VERSION
}

/// Sets the threads of all work of the process, 0 for one per core. Must come before the first
/// work, and only once. Without it, the environment variable RAYON_NUM_THREADS sets them. More than
/// four per core are as four per core: they only slow the work down. If the system refuses threads
/// to the first work, it fails, and later work tries again.
#[unsafe(no_mangle)]
pub extern "C" fn tagore_set_threads(threads: usize) -> tagore_status {
    call(|| {
        if threads > MAX_THREADS {
            return Err(Failure::argument("threads", threads, format_args!("at most {MAX_THREADS}")));
        }
        Ok(start_threads(Some(threads))?)
    })
}

/// Maximum number of threads.
const MAX_THREADS: usize = 4096;
