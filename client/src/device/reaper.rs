//! The reaper: ends flights that nobody waits for.
//!
//! It sleeps while there is none; while there are, it asks for their events about every millisecond.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tierpack_kernels::cuda::driver::Device;

use super::flight::Flight;
use crate::error::{Error, Result};
use crate::session::block_signals;

/// Between two looks: leases last so much longer than the launches that they are for.
const PAUSE: Duration = Duration::from_millis(1);

/// The flights of a GPU, and the thread that looks after them.
#[derive(Debug)]
pub(super) struct Reaper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    flights: Mutex<Flights>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Flights {
    all: Vec<Arc<Flight>>,
    is_closed: bool,
}

impl Reaper {
    pub(super) fn start(device: &Arc<Device>) -> Result<Self> {
        let shared = Arc::<Shared>::default();
        let (mine, device) = (Arc::clone(&shared), Arc::clone(device));
        let thread = std::thread::Builder::new()
            .name("tierpack-gpu".to_owned())
            .spawn(move || mine.run(&device))
            .map_err(|source| Error::Thread { source })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Looks after a flight from now on.
    pub(super) fn watch(&self, flight: Arc<Flight>) {
        self.shared.flights.lock().all.push(flight);
        self.shared.changed.notify_one();
    }

    /// Looks once, for a caller who needs what a flight would return.
    pub(super) fn look(&self) {
        self.shared.look();
    }

    /// Waits for the oldest flight; `false` when there is none.
    pub(super) fn wait_for_oldest(&self) -> bool {
        let oldest = self.shared.flights.lock().all.first().map(Arc::clone);
        let Some(oldest) = oldest else { return false };
        // How it went is for who asked for it.
        drop(oldest.wait());
        self.shared.look();
        true
    }

    /// Ends the thread, and waits for all flights.
    pub(super) fn close(&mut self) {
        self.shared.flights.lock().is_closed = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed.
            drop(thread.join());
        }
        let left = std::mem::take(&mut self.shared.flights.lock().all);
        left.iter().for_each(|flight| flight.wait_or_give_up());
    }
}

impl Shared {
    fn run(&self, device: &Device) {
        block_signals();
        // Saves every question a change of contexts; where it fails, each question tries again.
        let _entered = device.enter().ok();
        loop {
            let mut flights = self.flights.lock();
            while flights.all.is_empty() && !flights.is_closed {
                self.changed.wait(&mut flights);
            }
            if flights.is_closed {
                return;
            }
            drop(flights);
            self.look_with(Flight::reap);
            std::thread::sleep(PAUSE);
        }
    }

    fn look(&self) {
        self.look_with(Flight::poll);
    }

    /// Asks for every event, not under the lock: a guard that ends may be the last owner of much.
    fn look_with(&self, has_ended: impl Fn(&Flight) -> bool) {
        let all = self.flights.lock().all.clone();
        let ended: Vec<_> = all.iter().filter(|flight| has_ended(flight)).map(Arc::as_ptr).collect();
        if !ended.is_empty() {
            self.flights.lock().all.retain(|flight| !ended.contains(&Arc::as_ptr(flight)));
        }
    }
}
