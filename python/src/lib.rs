//! The native module `tagore_ann._tagore`: arrays, options, errors, signals and progress of Python
//! around the library. What users see is in `tagore_ann/`.

mod array;
mod build;
mod device_array;
mod dlpack;
mod errors;
mod events;
mod files;
mod filter;
mod index;
mod live;
mod merge;
mod options;
mod plan;
mod process;
mod search;
mod tasks;
mod update;
mod watch;

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs the `tagore` command with the arguments `args`, the name of the program first.
#[pyfunction]
fn command(py: Python<'_>, args: Vec<OsString>) -> u8 {
    py.detach(|| tagore_cli::run(args))
}

#[pymodule]
mod _tagore {
    use super::*;

    #[pymodule_export]
    use super::{
        build::{build, build_file, knn_graph, knn_graph_on_device},
        command,
        device_array::{DeviceArray, array_of_capsule, array_of_interface, array_of_type},
        files::{read, read_truth, write, write_truth},
        index::{Index, index_element, open},
        live::LiveIndex,
        merge::merge,
        plan::plan,
        process::forked,
        search::{evaluate, exact, exact_on_device, search, search_on_device, search_one},
        tasks::{TaskObject, Tasks, open_tasks, plan_tasks, shape},
        update::update,
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("MISSING", u32::MAX)
    }
}
