//! The wish of the person at the terminal to stop.

use crate::report::OrReport;
use miette::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Becomes true with Ctrl-C. A second one ends the process at once.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens from now on; once a process.
    pub(crate) fn listen() -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let handler = move || {
            if told.swap(true, Ordering::Relaxed) {
                std::process::exit(130);
            }
        };
        ctrlc::set_handler(handler).or_report()?;
        Ok(Self(stop))
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
