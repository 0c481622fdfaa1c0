//! The wish of the person at the terminal to stop.

use crate::report::OrReport;
use miette::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Signals that are no further apart are one.
const SAME_WISH: Duration = Duration::from_millis(300);

/// Becomes true with Ctrl-C, or when the system asks the process to end. A second time ends it at once.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens from now on; once a process.
    pub(crate) fn listen() -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let mut first: Option<Instant> = None;
        let handler = move || {
            told.store(true, Ordering::Relaxed);
            // A process and its group may be told of one wish one after the other.
            if first.get_or_insert_with(Instant::now).elapsed() > SAME_WISH {
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
