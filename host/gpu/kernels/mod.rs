//! Compiled kernels of a device.
//!
//! A kernel is compiled when it is first launched, or before, on threads of its own: a build names
//! the kernels that it will launch. Compiled kernels are kept in the user's cache folder.

mod cache;
#[cfg(feature = "cuda")]
mod driver;
mod threads;

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

pub(super) use cache::CacheFile;
use cache::Images;
#[cfg(feature = "cuda")]
pub(super) use driver::Programs;
pub(super) use threads::spawn;

use crate::Result;
use crate::parallel::locked;

/// Threads that load kernels of the cache: the driver loads one at a time, near enough.
const LOADERS: usize = 2;

/// A compiler of kernels of one PTX text, for one device.
pub(super) trait Compiler: Send + Sync + 'static {
    /// A loaded kernel.
    type Function: Clone + Send;

    /// Compiles a kernel to an image that [`load`](Self::load) takes.
    fn compile(&self, kernel: &str) -> Result<Vec<u8>>;

    /// Loads an image of a kernel.
    fn load(&self, kernel: &str, image: &[u8]) -> Result<Self::Function>;

    /// Compiles and loads a kernel whose image nobody keeps.
    fn compile_and_load(&self, kernel: &str) -> Result<Self::Function>;

    /// A number that grows with the time that compiling a kernel takes.
    fn work(&self, kernel: &str) -> usize;
}

/// The kernels of one PTX text on one device.
#[derive(Debug)]
pub(super) struct Kernels<C: Compiler> {
    compiler: C,
    file: Option<CacheFile>,
    state: Mutex<State<C::Function>>,
    /// A kernel became ready, or could not be made.
    changed: Condvar,
}

#[derive(Debug)]
struct State<F> {
    slots: HashMap<&'static str, Slot<F>>,
    /// Kernels to compile in advance, the next one last.
    waiting: Vec<&'static str>,
    /// Images read from the file, until they are loaded; none before the file is read.
    cached: Option<Images>,
    /// Images that the file lacks.
    fresh: Images,
    /// Whether a thread writes the file.
    is_saving: bool,
    /// Seconds that launches waited for kernels.
    waited: f64,
}

#[derive(Debug)]
enum Slot<F> {
    /// A thread is making the kernel.
    Busy,
    Ready(F),
}

impl<C: Compiler> Kernels<C> {
    /// Kernels of `compiler`, kept in `file` if given.
    pub(super) fn new(compiler: C, file: Option<CacheFile>) -> Self {
        let state = State {
            slots: HashMap::new(),
            waiting: Vec::new(),
            cached: None,
            fresh: Images::new(),
            is_saving: false,
            waited: 0.0,
        };
        Self { compiler, file, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The compiler.
    pub(super) fn compiler(&self) -> &C {
        &self.compiler
    }

    /// Seconds that [`get`](Self::get) waited for kernels so far, over all threads.
    pub(super) fn waited(&self) -> f64 {
        self.lock().waited
    }

    fn lock(&self) -> MutexGuard<'_, State<C::Function>> {
        locked(&self.state)
    }

    /// The loaded kernel. If no thread has begun to make it, this one makes it.
    ///
    /// # Errors
    /// If it cannot be compiled or loaded.
    pub(super) fn get(&self, kernel: &'static str) -> Result<C::Function> {
        let mut began = None;
        let mut state = self.lock();
        loop {
            match state.slots.get(kernel) {
                Some(Slot::Ready(function)) => {
                    let function = function.clone();
                    state.waited += began.map_or(0.0, |began: Instant| began.elapsed().as_secs_f64());
                    return Ok(function);
                }
                Some(Slot::Busy) => {
                    began.get_or_insert_with(Instant::now);
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                None => {
                    let began = *began.get_or_insert_with(Instant::now);
                    state.slots.insert(kernel, Slot::Busy);
                    state.waiting.retain(|&waiting| waiting != kernel);
                    drop(state);
                    let made = self.make(kernel);
                    self.lock().waited += began.elapsed().as_secs_f64();
                    self.save();
                    return made;
                }
            }
        }
    }

    /// Makes the kernels on up to `most` threads, and returns at once. A kernel that cannot be made
    /// fails where it is launched.
    pub(super) fn prepare(self: &Arc<Self>, kernels: &[&'static str], most: usize) {
        let kernels: Vec<_> = kernels.iter().map(|&kernel| (self.compiler.work(kernel), kernel)).collect();
        let mut state = self.lock();
        let cached = self.cached(&mut state);
        let uncached = kernels.iter().filter(|(_, kernel)| !cached.contains_key(*kernel)).count();
        let earlier = std::mem::take(&mut state.waiting);
        let earlier = earlier.into_iter().map(|kernel| (self.compiler.work(kernel), kernel));
        let mut new: Vec<_> = kernels.into_iter().chain(earlier).collect();
        new.retain(|(_, kernel)| !state.slots.contains_key(kernel));
        // The longest first: the last to end then ends soonest.
        new.sort_unstable();
        new.dedup();
        state.waiting = new.into_iter().map(|(_, kernel)| kernel).collect();
        let threads = (uncached + LOADERS).min(most).min(state.waiting.len());
        drop(state);
        for number in 0..threads {
            let kernels = Arc::clone(self);
            // Without a thread, launches make the kernels.
            if !spawn(&format!("kernels {number}"), move || kernels.work_off()) {
                break;
            }
        }
    }

    /// Makes waiting kernels until none is left.
    fn work_off(&self) {
        while let Some(kernel) = self.next() {
            // A launch meets the same error.
            let _ = self.make(kernel).inspect_err(|error| tracing::debug!(kernel, %error, "not compiled"));
        }
        self.save();
    }

    /// Takes a waiting kernel.
    fn next(&self) -> Option<&'static str> {
        let mut state = self.lock();
        loop {
            let kernel = state.waiting.pop().filter(|_| !threads::is_stopping())?;
            if !state.slots.contains_key(kernel) {
                state.slots.insert(kernel, Slot::Busy);
                return Some(kernel);
            }
        }
    }

    /// Makes a kernel whose slot is [`Slot::Busy`].
    fn make(&self, kernel: &'static str) -> Result<C::Function> {
        // A panic must not leave others waiting.
        struct Unmade<'a, C: Compiler>(&'a Kernels<C>, &'static str);
        impl<C: Compiler> Drop for Unmade<'_, C> {
            fn drop(&mut self) {
                let mut state = self.0.lock();
                if let Some(Slot::Busy) = state.slots.get(self.1) {
                    state.slots.remove(self.1);
                }
                drop(state);
                self.0.changed.notify_all();
            }
        }
        let _unmade = Unmade(self, kernel);
        let began = Instant::now();
        let (function, fresh) = self.function(kernel)?;
        let (seconds, cached) = (began.elapsed().as_secs_f64(), fresh.is_none() && self.file.is_some());
        let (stage, thread) = ("compile", std::thread::current().name().unwrap_or("").to_owned());
        tracing::debug!(stage, kernel, thread, seconds, cached, "a stage ends");
        let mut state = self.lock();
        state.slots.insert(kernel, Slot::Ready(function.clone()));
        state.fresh.extend(fresh.map(|image| (kernel.to_owned(), image)));
        Ok(function)
    }

    /// Loads a kernel from the cache, or compiles it. Returns its image too if the file lacks it.
    fn function(&self, kernel: &str) -> Result<(C::Function, Option<Vec<u8>>)> {
        if self.file.is_none() {
            return Ok((self.compiler.compile_and_load(kernel)?, None));
        }
        let cached = self.cached(&mut self.lock()).remove(kernel);
        if let Some(image) = cached {
            match self.compiler.load(kernel, &image) {
                Ok(function) => return Ok((function, None)),
                Err(error) => tracing::debug!(kernel, %error, "cached kernel ignored"),
            }
        }
        let image = self.compiler.compile(kernel)?;
        Ok((self.compiler.load(kernel, &image)?, Some(image)))
    }

    /// The images of the file that are not loaded yet; reads it on first use.
    fn cached<'s>(&self, state: &'s mut State<C::Function>) -> &'s mut Images {
        let read = || self.file.as_ref().map_or_else(Images::new, CacheFile::read);
        state.cached.get_or_insert_with(read)
    }

    /// Adds the new images to the file, once no kernel is being made. One thread writes at a time,
    /// so that no image is lost. Images that become ready meanwhile are written by the same thread.
    fn save(&self) {
        let Some(file) = &self.file else { return };
        let mut state = self.lock();
        while state.has_to_save() {
            state.is_saving = true;
            let fresh = std::mem::take(&mut state.fresh);
            drop(state);
            let (kernels, began) = (fresh.len(), Instant::now());
            match file.add(fresh) {
                Ok(()) => {
                    let seconds = began.elapsed().as_secs_f64();
                    tracing::debug!(kernels, seconds, "compiled kernels cached");
                }
                Err(error) => tracing::debug!(kernels, %error, "compiled kernels not cached"),
            }
            state = self.lock();
            state.is_saving = false;
        }
    }
}

impl<F> State<F> {
    /// Whether there are images to save, no kernel is being made, and no thread is saving.
    fn has_to_save(&self) -> bool {
        let is_busy = |slot: &Slot<F>| matches!(slot, Slot::Busy);
        let is_idle = self.waiting.is_empty() || threads::is_stopping();
        !self.fresh.is_empty() && is_idle && !self.is_saving && !self.slots.values().any(is_busy)
    }
}

#[cfg(test)]
mod tests;
