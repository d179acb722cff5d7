//! Panics of lanes: caught with message and line, not printed.

use std::any::Any;
use std::cell::RefCell;
use std::panic;
use std::sync::Once;

use cuda_std::host;

use crate::fault::Site;

thread_local! {
    static SITE: RefCell<Option<Site>> = const { RefCell::new(None) };
}

/// A panic of a lane.
pub(crate) struct Panicked {
    pub message: String,
    pub site: Option<Site>,
}

/// Installs a panic hook that records the line of a panic inside a lane and passes all others to
/// the program's hook.
fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if host::runs_lane() {
                SITE.set(info.location().map(Site::from));
            } else {
                previous(info);
            }
        }));
    });
}

/// Prepares for panics of lanes. Does nothing while this thread panics, since hooks cannot be
/// changed then.
pub(crate) fn prepare() {
    if !std::thread::panicking() {
        install();
    }
}

impl Panicked {
    /// The panic of this thread that was caught with `payload`.
    pub fn new(payload: &(dyn Any + Send)) -> Self {
        Self { message: message(payload), site: SITE.take() }
    }
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    // Reports are one line.
    text.unwrap_or("with no message").replace('\n', " ")
}
