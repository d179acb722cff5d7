//! What the first search that needs it makes.

use std::sync::{Mutex, OnceLock};

use crate::Result;
use crate::parallel::locked;

/// A value that is made once. Nothing waits for a lock once it is there.
pub(super) struct Lazy<T> {
    value: OnceLock<T>,
    making: Mutex<()>,
}

impl<T> Default for Lazy<T> {
    fn default() -> Self {
        Self { value: OnceLock::new(), making: Mutex::default() }
    }
}

impl<T> Lazy<T> {
    /// The value; `make` makes it if it is missing, on one thread at a time.
    ///
    /// # Errors
    /// Those of `make`. The next call makes it again.
    pub(super) fn get_or_make(&self, make: impl FnOnce() -> Result<T>) -> Result<&T> {
        if let Some(known) = self.value.get() {
            return Ok(known);
        }
        let _making = locked(&self.making);
        if let Some(known) = self.value.get() {
            return Ok(known);
        }
        let made = make()?;
        Ok(self.value.get_or_init(|| made))
    }
}
