//! All that the stand-in knows, under one lock. Kernels and callbacks run without it.

use std::collections::HashMap;
use std::fs::File;
use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::code::{Answer, Code};
use crate::events::Event;
use crate::launches::Function;
use crate::memory::Memory;
use crate::modules::Module;
use crate::ops::Op;
use crate::raw;
use crate::settings::{Mode, Settings};
use crate::streams::Stream;
use crate::trace;

/// What represents an object of the driver: stream, event, module, function, graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub(crate) struct Handle(pub(crate) usize);

/// The locked state.
pub(crate) type Guard = MutexGuard<'static, State>;

pub(crate) struct State {
    pub(crate) settings: Settings,
    pub(crate) initialized: bool,
    pub(crate) contexts: u32,
    /// What a kernel did wrong: every later call answers it.
    pub(crate) sticky: Option<Code>,
    pub(crate) memory: Memory,
    pub(crate) streams: HashMap<Handle, Stream>,
    pub(crate) events: HashMap<Handle, Event>,
    pub(crate) modules: HashMap<Handle, Module>,
    pub(crate) functions: HashMap<Handle, Function>,
    pub(crate) graphs: HashMap<Handle, Vec<Op>>,
    pub(crate) calls: HashMap<&'static str, u32>,
    pub(crate) trace: Option<File>,
    /// Of records of events.
    pub(crate) sequence: u64,
    pub(crate) random: u64,
    next_handle: usize,
}

/// Told when an operation has ended, and when one has come.
pub(crate) static PROGRESS: Condvar = Condvar::new();

static STATE: OnceLock<Mutex<State>> = OnceLock::new();

pub(crate) fn lock() -> Guard {
    let state = STATE.get_or_init(|| {
        raw::at_exit(end);
        Mutex::new(State::new(Settings::read()))
    });
    state.lock()
}

/// Tells what must not be left when the process ends. A child of a fork may find a lock that nobody opens.
extern "C" fn end() {
    if let Some(state) = STATE.get().and_then(|state| state.try_lock_for(Duration::from_secs(1))) {
        state.memory.host.tell_unmapped();
    }
}

impl State {
    fn new(settings: Settings) -> Self {
        let predefined = [Handle::LEGACY, Handle::PER_THREAD];
        if settings.mode == Mode::Worker {
            std::thread::spawn(crate::schedule::work);
        }
        Self {
            initialized: false,
            contexts: 0,
            sticky: None,
            memory: Memory::new(&settings),
            streams: predefined.map(|handle| (handle, Stream::default())).into(),
            events: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            graphs: HashMap::new(),
            calls: HashMap::new(),
            trace: settings.trace.as_deref().and_then(trace::open),
            sequence: 0,
            random: settings.seed.into(),
            next_handle: 0x1000,
            settings,
        }
    }

    pub(crate) fn handle(&mut self) -> Handle {
        self.next_handle += 16;
        Handle(self.next_handle)
    }

    /// The error that stays, if there is one.
    pub(crate) fn health(&self) -> Answer {
        self.sticky.map_or(Ok(()), Err)
    }

    pub(crate) fn random_below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % limit
    }
}
