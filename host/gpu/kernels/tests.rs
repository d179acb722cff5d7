//! Tests of compiled kernels, with a compiler that counts.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::*;
use crate::Error;

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// A compiler whose images are the names of the kernels, and whose kernel `bad` does not compile.
#[derive(Debug, Default)]
struct Counting {
    compiled: AtomicUsize,
    loaded: AtomicUsize,
    direct: AtomicUsize,
    slow: bool,
}

impl Compiler for Counting {
    type Function = String;

    fn compile(&self, kernel: &str) -> Result<Vec<u8>> {
        self.compiled.fetch_add(1, Ordering::Relaxed);
        if self.slow {
            thread::sleep(Duration::from_millis(20));
        }
        if kernel == "bad" {
            return Err(Error::Device { device: "fake".to_owned(), problem: "bad".to_owned() });
        }
        Ok(kernel.repeat(10).into_bytes())
    }

    fn load(&self, kernel: &str, image: &[u8]) -> Result<String> {
        self.loaded.fetch_add(1, Ordering::Relaxed);
        if image != kernel.repeat(10).as_bytes() {
            return Err(Error::Device { device: "fake".to_owned(), problem: "wrong image".to_owned() });
        }
        Ok(kernel.to_owned())
    }

    fn compile_and_load(&self, kernel: &str) -> Result<String> {
        self.direct.fetch_add(1, Ordering::Relaxed);
        Ok(kernel.to_owned())
    }

    fn work(&self, kernel: &str) -> usize {
        kernel.len()
    }
}

fn kernels(folder: Option<&Path>, slow: bool) -> Arc<Kernels<Counting>> {
    let file = folder.map(|folder| CacheFile::within(folder, "key".to_owned()).unwrap());
    Arc::new(Kernels::new(Counting { slow, ..Counting::default() }, file))
}

impl Kernels<Counting> {
    /// Compiled and loaded kernels so far.
    fn counts(&self) -> (usize, usize) {
        (self.compiler.compiled.load(Ordering::Relaxed), self.compiler.loaded.load(Ordering::Relaxed))
    }

    /// Waits until the file is written.
    fn wait(&self) {
        let is_written = || {
            let state = self.lock();
            state.fresh.is_empty() && !state.is_saving
        };
        while !is_written() {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn a_kernel_is_compiled_once_by_any_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let kernels = kernels(Some(folder.path()), true);
    kernels.prepare(&NAMES, 3);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| NAMES.iter().for_each(|&name| assert_eq!(kernels.get(name).unwrap(), name)));
        }
    });
    assert_eq!(kernels.counts(), (6, 6));
    assert!(kernels.waited() > 0.0);
    // A second request finds all of them.
    kernels.prepare(&NAMES, 3);
    assert_eq!(kernels.get("a").unwrap(), "a");
    assert_eq!(kernels.counts(), (6, 6));
}

#[test]
fn a_second_process_loads_what_the_first_compiled() {
    let folder = tempfile::tempdir().unwrap();
    let first = kernels(Some(folder.path()), false);
    first.prepare(&NAMES[..4], 2);
    NAMES.iter().for_each(|name| drop(first.get(name).unwrap()));
    first.wait();
    let second = kernels(Some(folder.path()), false);
    second.prepare(&NAMES, 8);
    NAMES.iter().for_each(|name| drop(second.get(name).unwrap()));
    assert_eq!(second.counts(), (0, 6));
}

#[test]
fn an_image_that_does_not_load_is_compiled_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = CacheFile::within(folder.path(), "key".to_owned()).unwrap();
    file.add([("a".to_owned(), b"of another program".to_vec())].into()).unwrap();
    let first = kernels(Some(folder.path()), false);
    assert_eq!(first.get("a").unwrap(), "a");
    assert_eq!(first.counts(), (1, 2));
    first.wait();
    let second = kernels(Some(folder.path()), false);
    assert_eq!(second.get("a").unwrap(), "a");
    assert_eq!(second.counts(), (0, 1));
}

#[test]
fn a_kernel_that_does_not_compile_fails_where_it_is_launched() {
    let folder = tempfile::tempdir().unwrap();
    let kernels = kernels(Some(folder.path()), true);
    kernels.prepare(&["bad", "a"], 2);
    for _ in 0..2 {
        assert!(kernels.get("bad").unwrap_err().to_string().contains("bad"));
    }
    assert_eq!(kernels.get("a").unwrap(), "a");
}

#[test]
fn without_a_cache_the_driver_compiles_and_loads() {
    let kernels = kernels(None, false);
    kernels.prepare(&NAMES, 2);
    NAMES.iter().for_each(|name| drop(kernels.get(name).unwrap()));
    assert_eq!((kernels.counts(), kernels.compiler.direct.load(Ordering::Relaxed)), ((0, 0), 6));
}

#[test]
fn a_folder_that_vanished_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let kernels = kernels(Some(&folder.path().join("inside")), false);
    drop(folder);
    assert_eq!(kernels.get("a").unwrap(), "a");
    assert_eq!(kernels.get("b").unwrap(), "b");
}
