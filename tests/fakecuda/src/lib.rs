//! Stand-in CUDA driver: kernels run on the CPU (cusim), streams are queues that run as late as is legal.
//!
//! Environment:
//! - FAKE_CUDA_MODE=sync           run every operation at once (default: at a synchronization)
//! - FAKE_CUDA_ORDER=0|1|2         lane order forward, reverse, random
//! - FAKE_CUDA_MEM=BYTES           device memory limit (default 8 GiB)
//! - FAKE_CUDA_DEVICES=0           cuInit answers CUDA_ERROR_NO_DEVICE
//! - FAKE_CUDA_ATTR_<n>=V          value of device attribute n
//! - FAKE_CUDA_FAIL=NAME:N:CODE    the N-th call of NAME returns CODE
//! - FAKE_CUDA_ALIAS=0             registered memory has the same address on host and device
//! - FAKE_CUDA_PROTECT=0           the host may touch the device heap (faster)
//! - FAKE_CUDA_LEAKS=1             report live allocations when the context is released
#![allow(non_snake_case, unused_variables, clippy::missing_safety_doc, clippy::too_many_arguments)]
use cusim::{Error, Kernel, Opts, Shape};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Instant;

type R = c_uint;
const OK: R = 0;
const INVALID_VALUE: R = 1;
const OOM: R = 2;
const NOT_INIT: R = 3;
const INVALID_DEVICE: R = 101;
const INVALID_IMAGE: R = 200;
const INVALID_CONTEXT: R = 201;
const INVALID_HANDLE: R = 400;
const NOT_FOUND: R = 500;
const NOT_READY: R = 600;
const ILLEGAL_ADDRESS: R = 700;
const ALREADY_REGISTERED: R = 712;
const NOT_REGISTERED: R = 713;
const LAUNCH_FAILED: R = 719;
const NOT_SUPPORTED: R = 801;
const CAPTURE_INVALID: R = 901;
const ERRS: &[(R, &str, &str)] = &[
    (0, "CUDA_SUCCESS", "no error"),
    (1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"),
    (2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"),
    (3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"),
    (100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"),
    (101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"),
    (200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"),
    (201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"),
    (209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"),
    (400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"),
    (500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"),
    (600, "CUDA_ERROR_NOT_READY", "device not ready"),
    (700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"),
    (
        712,
        "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        "part or all of the requested memory range is already mapped",
    ),
    (
        713,
        "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        "pointer does not correspond to a registered memory region",
    ),
    (719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"),
    (801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"),
    (901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"),
];

#[derive(Clone)]
enum Op {
    Launch { f: usize, grid: [u32; 3], block: [u32; 3], shm: u32, args: Vec<Vec<u8>> },
    Copy { dst: u64, src: u64, n: usize },
    Bytes { dst: u64, data: Vec<u8> },
    Set { dst: u64, v: u8, n: usize },
    Free(u64),
    Record { ev: usize, seq: u64 },
    Wait { ev: usize, seq: u64 },
    Host { f: usize, data: usize },
}
#[derive(Default)]
struct Stream {
    q: VecDeque<Op>,
    capture: Option<Vec<Op>>,
}
#[derive(Default)]
struct Event {
    seq: u64,
    stream: usize,
    done: u64,
    at: Option<Instant>,
    timing: bool,
}
struct Alloc {
    size: usize,
    kind: u8, // 0 device, 1 managed, 2 pinned host
}
struct Reg {
    size: usize,
    flags: u32,
    dev: u64,
    alias: bool,
}
struct Func {
    name: String,
    k: Kernel,
    sizes: Vec<u32>,
    max_dyn: u32,
}
struct Arena {
    base: u64,
    size: usize,
    free: Vec<(u64, usize)>,
    used: usize,
    limit: usize,
}
struct S {
    init: bool,
    refs: u32,
    sticky: R,
    next: u64,
    seq: u64,
    allocs: BTreeMap<u64, Alloc>,
    regs: BTreeMap<u64, Reg>,
    streams: HashMap<usize, Stream>,
    events: HashMap<usize, Event>,
    mods: HashMap<usize, Vec<(String, Vec<u32>)>>,
    funcs: HashMap<usize, Func>,
    graphs: HashMap<usize, Vec<Op>>,
    arena: Arena,
    lazy: bool,
    protect: bool,
    open: u32,
    fail: Option<(String, u32, R)>,
    calls: HashMap<&'static str, u32>,
}
const CTX: usize = 0xC0FFEE00;
thread_local! { static CUR: std::cell::Cell<usize> = const { std::cell::Cell::new(0) }; }
fn env(k: &str) -> Option<String> {
    std::env::var(k).ok()
}
static ST: OnceLock<Mutex<S>> = OnceLock::new();
fn st() -> MutexGuard<'static, S> {
    ST.get_or_init(|| {
        let size = 64usize << 30;
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        } as u64;
        let fail = env("FAKE_CUDA_FAIL").map(|v| {
            let p: Vec<&str> = v.split(':').collect();
            (p[0].to_string(), p[1].parse().unwrap(), p[2].parse().unwrap())
        });
        let mut streams = HashMap::new();
        for s in [0usize, 1, 2] {
            streams.insert(s, Stream::default());
        }
        Mutex::new(S {
            init: false,
            refs: 0,
            sticky: 0,
            next: 0x1000,
            seq: 0,
            allocs: Default::default(),
            regs: Default::default(),
            streams,
            events: Default::default(),
            mods: Default::default(),
            funcs: Default::default(),
            graphs: Default::default(),
            arena: Arena {
                base,
                size,
                free: vec![(base, size)],
                used: 0,
                limit: env("FAKE_CUDA_MEM").map_or(8 << 30, |v| v.parse().unwrap()),
            },
            lazy: env("FAKE_CUDA_MODE").as_deref() != Some("sync"),
            protect: env("FAKE_CUDA_PROTECT").as_deref() != Some("0"),
            open: 0,
            fail,
            calls: Default::default(),
        })
    })
    .lock()
    .unwrap_or_else(|e| e.into_inner())
}
const GAP: usize = 512;
const CANARY: u8 = 0xFD;
impl S {
    fn id(&mut self) -> usize {
        self.next += 16;
        self.next as usize
    }
    // make the device heap accessible while the "GPU" works
    fn open(&mut self) {
        self.open += 1;
        if self.open == 1 && self.protect {
            unsafe {
                libc::mprotect(self.arena.base as _, self.arena.size, libc::PROT_READ | libc::PROT_WRITE);
            }
        }
    }
    fn close(&mut self) {
        self.open -= 1;
        if self.open == 0 && self.protect {
            unsafe {
                libc::mprotect(self.arena.base as _, self.arena.size, libc::PROT_NONE);
            }
        }
    }
    fn alloc(&mut self, n: usize, kind: u8) -> Result<u64, R> {
        if n == 0 {
            return Err(INVALID_VALUE);
        }
        let need = n.div_ceil(512) * 512 + GAP;
        if self.arena.used + need > self.arena.limit {
            return Err(OOM);
        }
        let i = self.arena.free.iter().position(|f| f.1 >= need).ok_or(OOM)?;
        let p = self.arena.free[i].0;
        self.arena.free[i] = (p + need as u64, self.arena.free[i].1 - need);
        self.arena.used += need;
        if kind == 0 && !self.protect {
            unsafe {
                libc::mprotect(self.arena.base as _, self.arena.size, libc::PROT_READ | libc::PROT_WRITE);
            }
        }
        self.open();
        unsafe {
            std::ptr::write_bytes(p as *mut u8, 0xA5, n);
            std::ptr::write_bytes((p + n as u64) as *mut u8, CANARY, need - n);
        }
        self.close();
        self.allocs.insert(p, Alloc { size: n, kind });
        Ok(p)
    }
    fn free(&mut self, p: u64) -> R {
        let Some(a) = self.allocs.remove(&p) else { return INVALID_VALUE };
        let need = a.size.div_ceil(512) * 512 + GAP;
        self.open();
        let tail = unsafe { std::slice::from_raw_parts((p + a.size as u64) as *const u8, need - a.size) };
        if let Some(i) = tail.iter().position(|&b| b != CANARY) {
            eprintln!("fakecuda: write past the end of a {}-byte device allocation, at +{i}", a.size);
            self.sticky = ILLEGAL_ADDRESS;
        }
        unsafe {
            std::ptr::write_bytes(p as *mut u8, 0xDD, a.size);
        }
        self.close();
        self.arena.free.push((p, need));
        self.arena.used -= need;
        OK
    }
    fn inside(&self, p: u64, n: usize) -> bool {
        if let Some((b, a)) = self.allocs.range(..=p).next_back() {
            if p + n as u64 <= b + a.size as u64 {
                return true;
            }
        }
        self.regs.iter().any(|(h, r)| {
            (p >= *h && p + n as u64 <= h + r.size as u64)
                || (p >= r.dev && p + n as u64 <= r.dev + r.size as u64)
        })
    }
    fn pinned(&self, p: u64, n: usize) -> bool {
        self.regs.iter().any(|(h, r)| p >= *h && p + n as u64 <= h + r.size as u64)
            || self
                .allocs
                .range(..=p)
                .next_back()
                .is_some_and(|(b, a)| a.kind == 2 && p + n as u64 <= b + a.size as u64)
    }
    fn push(&mut self, s: usize, op: Op) -> R {
        if self.sticky != 0 {
            return self.sticky;
        }
        let Some(st) = self.streams.get_mut(&s) else { return INVALID_HANDLE };
        if let Some(c) = &mut st.capture {
            c.push(op);
            return OK;
        }
        st.q.push_back(op);
        if !self.lazy {
            return self.drain(s, u64::MAX);
        }
        OK
    }
    fn exec(&mut self, op: Op) -> R {
        match op {
            Op::Copy { dst, src, n } => {
                self.open();
                unsafe { std::ptr::copy(src as *const u8, dst as *mut u8, n) };
                self.close();
            }
            Op::Bytes { dst, data } => {
                self.open();
                unsafe { std::ptr::copy(data.as_ptr(), dst as *mut u8, data.len()) };
                self.close();
            }
            Op::Set { dst, v, n } => {
                self.open();
                unsafe { std::ptr::write_bytes(dst as *mut u8, v, n) };
                self.close();
            }
            Op::Free(p) => return self.free(p),
            Op::Record { ev, seq } => {
                if let Some(e) = self.events.get_mut(&ev) {
                    e.done = e.done.max(seq);
                    e.at = Some(Instant::now());
                }
            }
            Op::Wait { ev, seq } => {
                let (s, done) = match self.events.get(&ev) {
                    Some(e) => (e.stream, e.done),
                    None => return OK,
                };
                if done < seq {
                    return self.drain(s, seq);
                }
            }
            Op::Host { f, data } => {
                let f: extern "C" fn(*mut c_void) = unsafe { std::mem::transmute(f) };
                f(data as _);
            }
            Op::Launch { f, grid, block, shm, mut args } => {
                let k = self.funcs[&f].k;
                let o = Opts::order(env("FAKE_CUDA_ORDER").and_then(|v| v.parse().ok()).unwrap_or(0), 1);
                self.open();
                let shape = Shape { grid, block, shared_bytes: shm };
                let ran = unsafe { k.launch(&shape, &mut args, o) };
                self.close();
                if let Err(m) = ran {
                    eprintln!("fakecuda: {m}");
                    let r = if matches!(m, Error::Fault(_)) { ILLEGAL_ADDRESS } else { LAUNCH_FAILED };
                    self.sticky = r;
                    return r;
                }
            }
        }
        OK
    }
    fn drain(&mut self, s: usize, until: u64) -> R {
        while let Some(op) = self.streams.get_mut(&s).and_then(|x| x.q.pop_front()) {
            let hit = matches!(op, Op::Record { seq, .. } if seq == until);
            let r = self.exec(op);
            if r != 0 {
                return r;
            }
            if hit {
                break;
            }
        }
        self.sticky
    }
    fn drain_all(&mut self) -> R {
        let ids: Vec<usize> = self.streams.keys().copied().collect();
        for s in ids {
            let r = self.drain(s, u64::MAX);
            if r != 0 {
                return r;
            }
        }
        self.sticky
    }
}
fn ready(name: &'static str, need_ctx: bool) -> Result<MutexGuard<'static, S>, R> {
    let mut s = st();
    let c = s.calls.entry(name).or_insert(0);
    *c += 1;
    let c = *c;
    if let Some((n, at, code)) = &s.fail {
        if n == name && *at == c {
            return Err(*code);
        }
    }
    if !s.init && name != "cuInit" {
        return Err(NOT_INIT);
    }
    if need_ctx && CUR.get() == 0 {
        return Err(INVALID_CONTEXT);
    }
    Ok(s)
}
// api!(name(args) needs_context |state| { body }): counts the call, injects a fault, checks the context, takes the lock.
macro_rules! api {
    ($name:ident($($a:ident: $t:ty),* $(,)?) $ctx:literal |$s:ident| $body:block) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($a: $t),*) -> R {
            #[allow(unused_mut, unused_variables)]
            let mut $s = match ready(stringify!($name), $ctx) {
                Ok(s) => s,
                Err(e) => return e,
            };
            #[allow(clippy::redundant_closure_call)]
            (move || -> R { $body })()
        }
    };
}
// Device attributes of an H200, as far as host code asks for them; everything else is 0.
#[rustfmt::skip]
const DEFAULT_ATTRS: &[(c_uint, c_int)] = &[
    (1, 1024), (2, 1024), (3, 1024), (4, 64), (5, 2147483647), (6, 65535), (7, 65535), // block and grid limits
    (8, 49152), (10, 32), (12, 65536), (13, 1980000), (16, 132),                       // smem, warp, regs, clock, SMs
    (19, 1), (31, 1), (36, 3201000), (37, 6144), (38, 62914560), (39, 2048), (41, 1),  // mapping, memory, L2, unified
    (75, 9), (76, 0),                                                                  // compute capability
    (81, 233472), (82, 65536), (97, 232448),                                           // smem and regs per SM, opt-in
    (83, 1), (88, 0), (89, 1), (100, 0),                                               // managed and pageable access
    (91, 0), // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM: 0, because the stand-in returns another address
    (99, 1), (113, 1), (115, 1),                                                       // register, read-only, pools
];
api!(cuInit(flags: c_uint) false |s| {
    if env("FAKE_CUDA_DEVICES").as_deref() == Some("0") {
        return 100;
    }
    s.init = true;
    OK
});
api!(cuDriverGetVersion(v: *mut c_int) false |s| {
    *v = 13000;
    OK
});
api!(cuDeviceGetCount(n: *mut c_int) false |s| {
    *n = 1;
    OK
});
api!(cuDeviceGet(d: *mut c_int, ord: c_int) false |s| {
    if ord != 0 {
        return INVALID_DEVICE;
    }
    *d = 0;
    OK
});
api!(cuDeviceGetName(name: *mut c_char, len: c_int, dev: c_int) false |s| {
    let n = b"fakecuda CPU device\0";
    std::ptr::copy(n.as_ptr() as *const c_char, name, n.len().min(len as usize));
    OK
});
api!(cuDeviceGetUuid_v2(u: *mut u8, dev: c_int) false |s| {
    std::ptr::write_bytes(u, 0xFA, 16);
    OK
});
api!(cuDeviceTotalMem_v2(n: *mut usize, dev: c_int) false |s| {
    *n = s.arena.limit;
    OK
});
api!(cuDeviceGetAttribute(v: *mut c_int, a: c_uint, dev: c_int) false |s| {
    *v = env(&format!("FAKE_CUDA_ATTR_{a}"))
        .and_then(|x| x.parse().ok())
        .or_else(|| DEFAULT_ATTRS.iter().find(|x| x.0 == a).map(|x| x.1))
        .unwrap_or(0);
    OK
});
api!(cuDevicePrimaryCtxRetain(c: *mut usize, dev: c_int) false |s| {
    s.refs += 1;
    *c = CTX;
    OK
});
api!(cuDevicePrimaryCtxRelease_v2(dev: c_int) false |s| {
    if s.refs == 0 {
        return INVALID_CONTEXT;
    }
    s.refs -= 1;
    if s.refs == 0 {
        let live = s.allocs.len();
        s.drain_all();
        if live > 0 && env("FAKE_CUDA_LEAKS").is_some() {
            eprintln!("fakecuda: {live} live device allocations at context release");
        }
    }
    OK
});
api!(cuCtxSetCurrent(c: usize) false |s| {
    CUR.set(c);
    OK
});
api!(cuCtxGetCurrent(c: *mut usize) false |s| {
    *c = CUR.get();
    OK
});
api!(cuCtxGetDevice(d: *mut c_int) true |s| {
    *d = 0;
    OK
});
api!(cuCtxSynchronize() true |s| {
    s.drain_all()
});
api!(cuCtxSetFlags(f: c_uint) true |s| {
    OK
});
api!(cuMemGetInfo_v2(f: *mut usize, t: *mut usize) true |s| {
    *t = s.arena.limit;
    *f = s.arena.limit - s.arena.used;
    OK
});
api!(cuMemAlloc_v2(p: *mut u64, n: usize) true |s| {
    match s.alloc(n, 0) {
        Ok(x) => {
            *p = x;
            OK
        }
        Err(e) => e,
    }
});
api!(cuMemAllocAsync(p: *mut u64, n: usize, st: usize) true |s| {
    match s.alloc(n, 0) {
        Ok(x) => {
            *p = x;
            OK
        }
        Err(e) => e,
    }
});
api!(cuMemFree_v2(p: u64) true |s| {
    if p == 0 {
        return OK;
    }
    let r = s.drain_all();
    if r != 0 {
        return r;
    }
    s.free(p)
});
api!(cuMemFreeAsync(p: u64, st: usize) true |s| {
    if p == 0 {
        return OK;
    }
    s.push(st, Op::Free(p))
});
api!(cuMemAllocManaged(p: *mut u64, n: usize, f: c_uint) true |s| {
    match s.alloc(n, 1) {
        Ok(x) => {
            *p = x;
            OK
        }
        Err(e) => e,
    }
});
api!(cuMemAdvise_v2(p: u64, n: usize, a: c_uint, l: u64) true |s| {
    if s.inside(p, n) {
        OK
    } else {
        INVALID_VALUE
    }
});
api!(cuMemPrefetchAsync_v2(p: u64, n: usize, l: u64, f: c_uint, st: usize) true |s| {
    if s.inside(p, n) {
        OK
    } else {
        INVALID_VALUE
    }
});
api!(cuMemHostAlloc(p: *mut *mut c_void, n: usize, f: c_uint) true |s| {
    let m = libc::mmap(std::ptr::null_mut(), n.max(1), 3, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
    *p = m;
    s.regs.insert(m as u64, Reg { size: n, flags: f | 2, dev: m as u64, alias: false });
    OK
});
api!(cuMemFreeHost(p: *mut c_void) true |s| {
    s.drain_all();
    match s.regs.remove(&(p as u64)) {
        Some(r) => {
            libc::munmap(p, r.size.max(1));
            OK
        }
        None => INVALID_VALUE,
    }
});
api!(cuMemHostRegister_v2(p: *mut c_void, n: usize, f: c_uint) true |s| {
    let a = p as u64;
    if p.is_null() || n == 0 || f & !0xf != 0 {
        return INVALID_VALUE;
    }
    if s.regs.iter().any(|(h, r)| a < h + r.size as u64 && *h < a + n as u64) {
        return ALREADY_REGISTERED;
    }
    // alias the pages at another address, so that passing the host pointer to a kernel is noticed; read-only if asked
    let lo = a & !4095;
    let len = ((a + n as u64 + 4095) & !4095) - lo;
    let m = if env("FAKE_CUDA_ALIAS").as_deref() == Some("0") {
        libc::MAP_FAILED
    } else {
        libc::mremap(lo as _, 0, len as usize, libc::MREMAP_MAYMOVE)
    };
    let (dev, alias) = if m == libc::MAP_FAILED {
        (a, false)
    } else {
        libc::mprotect(m, len as usize, if f & 8 != 0 { 1 } else { 3 });
        (m as u64 + (a - lo), true)
    };
    s.regs.insert(a, Reg { size: n, flags: f, dev, alias });
    OK
});
api!(cuMemHostUnregister(p: *mut c_void) true |s| {
    s.drain_all();
    match s.regs.remove(&(p as u64)) {
        Some(r) => {
            if r.alias {
                let lo = r.dev & !4095;
                libc::munmap(lo as _, (((r.dev + r.size as u64 + 4095) & !4095) - lo) as usize);
            }
            OK
        }
        None => NOT_REGISTERED,
    }
});
api!(cuMemHostGetDevicePointer_v2(d: *mut u64, p: *mut c_void, f: c_uint) true |s| {
    let a = p as u64;
    match s.regs.range(..=a).next_back() {
        Some((h, r)) if a < h + r.size as u64 => {
            if r.flags & 2 == 0 {
                return INVALID_VALUE;
            }
            *d = r.dev + (a - h);
            OK
        }
        _ => INVALID_VALUE,
    }
});
api!(cuMemHostGetFlags(f: *mut c_uint, p: *mut c_void) true |s| {
    match s.regs.get(&(p as u64)) {
        Some(r) => {
            *f = r.flags;
            OK
        }
        None => INVALID_VALUE,
    }
});
// Copies: pageable host memory is captured (H2D) or completed (D2H) in the call; pinned memory is touched when the
// stream runs.
api!(cuMemcpyHtoDAsync_v2(d: u64, h: *const c_void, n: usize, st: usize) true |s| {
    if !s.inside(d, n) {
        return INVALID_VALUE;
    }
    if n == 0 {
        return OK;
    }
    let op = if s.pinned(h as u64, n) {
        Op::Copy { dst: d, src: h as u64, n }
    } else {
        Op::Bytes { dst: d, data: std::slice::from_raw_parts(h as *const u8, n).to_vec() }
    };
    s.push(st, op)
});
api!(cuMemcpyDtoHAsync_v2(h: *mut c_void, d: u64, n: usize, st: usize) true |s| {
    if !s.inside(d, n) {
        return INVALID_VALUE;
    }
    if n == 0 {
        return OK;
    }
    let p = s.pinned(h as u64, n);
    let cap = s.streams.get(&st).is_some_and(|x| x.capture.is_some());
    let r = s.push(st, Op::Copy { dst: h as u64, src: d, n });
    if r != 0 || p || cap {
        return r;
    }
    s.drain(st, u64::MAX)
});
api!(cuMemcpyDtoDAsync_v2(d: u64, f: u64, n: usize, st: usize) true |s| {
    if !s.inside(d, n) || !s.inside(f, n) {
        return INVALID_VALUE;
    }
    s.push(st, Op::Copy { dst: d, src: f, n })
});
api!(cuMemcpyHtoD_v2(d: u64, h: *const c_void, n: usize) true |s| {
    if !s.inside(d, n) {
        return INVALID_VALUE;
    }
    let r = s.push(0, Op::Copy { dst: d, src: h as u64, n });
    if r != 0 {
        return r;
    }
    s.drain(0, u64::MAX)
});
api!(cuMemcpyDtoH_v2(h: *mut c_void, d: u64, n: usize) true |s| {
    if !s.inside(d, n) {
        return INVALID_VALUE;
    }
    let r = s.push(0, Op::Copy { dst: h as u64, src: d, n });
    if r != 0 {
        return r;
    }
    s.drain(0, u64::MAX)
});
api!(cuMemcpyDtoD_v2(d: u64, f: u64, n: usize) true |s| {
    if !s.inside(d, n) || !s.inside(f, n) {
        return INVALID_VALUE;
    }
    s.push(0, Op::Copy { dst: d, src: f, n })
});
api!(cuMemsetD8Async(d: u64, v: u8, n: usize, st: usize) true |s| {
    if !s.inside(d, n) {
        return INVALID_VALUE;
    }
    s.push(st, Op::Set { dst: d, v, n })
});
api!(cuMemsetD8_v2(d: u64, v: u8, n: usize) true |s| {
    if !s.inside(d, n) {
        return INVALID_VALUE;
    }
    s.push(0, Op::Set { dst: d, v, n })
});
api!(cuStreamCreate(p: *mut usize, f: c_uint) true |s| {
    let i = s.id();
    s.streams.insert(i, Stream::default());
    *p = i;
    OK
});
api!(cuStreamCreateWithPriority(p: *mut usize, f: c_uint, prio: c_int) true |s| {
    let i = s.id();
    s.streams.insert(i, Stream::default());
    *p = i;
    OK
});
api!(cuStreamDestroy_v2(h: usize) true |s| {
    let r = s.drain(h, u64::MAX);
    s.streams.remove(&h);
    r
});
api!(cuStreamSynchronize(h: usize) true |s| {
    if !s.streams.contains_key(&h) {
        return INVALID_HANDLE;
    }
    s.drain(h, u64::MAX)
});
api!(cuStreamQuery(h: usize) true |s| {
    match s.streams.get_mut(&h).map(|x| x.q.pop_front()) {
        None => INVALID_HANDLE,
        Some(None) => s.sticky,
        Some(Some(op)) => {
            let r = s.exec(op);
            if r != 0 {
                r
            } else {
                NOT_READY
            }
        }
    }
});
api!(cuStreamWaitEvent(h: usize, ev: usize, f: c_uint) true |s| {
    let Some(e) = s.events.get(&ev) else { return INVALID_HANDLE };
    let seq = e.seq;
    if seq == 0 || e.done >= seq {
        return OK;
    }
    s.push(h, Op::Wait { ev, seq })
});
api!(cuLaunchHostFunc(h: usize, f: usize, data: usize) true |s| {
    s.push(h, Op::Host { f, data })
});
api!(cuEventCreate(p: *mut usize, f: c_uint) true |s| {
    let i = s.id();
    s.events.insert(i, Event { timing: f & 2 == 0, ..Default::default() });
    *p = i;
    OK
});
api!(cuEventDestroy_v2(e: usize) true |s| {
    if s.events.remove(&e).is_some() {
        OK
    } else {
        INVALID_HANDLE
    }
});
api!(cuEventRecord(e: usize, h: usize) true |s| {
    s.seq += 1;
    let seq = s.seq;
    match s.events.get_mut(&e) {
        None => return INVALID_HANDLE,
        Some(x) => {
            x.seq = seq;
            x.stream = h;
        }
    }
    s.push(h, Op::Record { ev: e, seq })
});
api!(cuEventSynchronize(e: usize) true |s| {
    let Some(x) = s.events.get(&e) else { return INVALID_HANDLE };
    let (h, seq) = (x.stream, x.seq);
    if seq == 0 || x.done >= seq {
        return s.sticky;
    }
    s.drain(h, seq)
});
api!(cuEventQuery(e: usize) true |s| {
    let Some(x) = s.events.get(&e) else { return INVALID_HANDLE };
    let (h, seq) = (x.stream, x.seq);
    if seq == 0 || x.done >= seq {
        return s.sticky;
    }
    if let Some(op) = s.streams.get_mut(&h).and_then(|q| q.q.pop_front()) {
        let r = s.exec(op);
        if r != 0 {
            return r;
        }
    }
    NOT_READY
});
api!(cuEventElapsedTime_v2(ms: *mut f32, a: usize, b: usize) true |s| {
    match (s.events.get(&a), s.events.get(&b)) {
        (Some(x), Some(y)) => {
            if !x.timing || !y.timing {
                return INVALID_HANDLE;
            }
            if x.done < x.seq || y.done < y.seq {
                return NOT_READY;
            }
            match (x.at, y.at) {
                (Some(p), Some(q)) => {
                    *ms = q.saturating_duration_since(p).as_secs_f32() * 1e3;
                    OK
                }
                _ => INVALID_HANDLE,
            }
        }
        _ => INVALID_HANDLE,
    }
});

/// kernel names and parameter sizes of a PTX text, or the kernel names of a cubin
unsafe fn parse_image(img: *const u8) -> Result<Vec<(String, Vec<u32>)>, R> {
    if std::slice::from_raw_parts(img, 4) == b"\x7fELF" {
        let rd = |o: usize, n: usize| {
            let mut v = 0u64;
            for i in 0..n {
                v |= (*img.add(o + i) as u64) << (8 * i);
            }
            v as usize
        };
        let (shoff, shent, shnum, shstr) = (rd(0x28, 8), rd(0x3a, 2), rd(0x3c, 2), rd(0x3e, 2));
        let stroff = rd(shoff + shstr * shent + 0x18, 8);
        let mut v = vec![];
        for i in 0..shnum {
            let n = CStr::from_ptr(img.add(stroff + rd(shoff + i * shent, 4)) as _).to_string_lossy();
            if let Some(k) = n.strip_prefix(".text.") {
                v.push((k.to_string(), vec![]));
            }
        }
        return Ok(v);
    }
    let t = CStr::from_ptr(img as _).to_str().map_err(|_| INVALID_IMAGE)?;
    let Some(ver) = t.split(".version ").nth(1).and_then(|x| x.split_whitespace().next()) else {
        return Err(INVALID_IMAGE);
    };
    if ver.parse::<f32>().unwrap_or(99.) > 9.0 {
        return Err(222);
    } // CUDA_ERROR_UNSUPPORTED_PTX_VERSION, as a 13.0 driver would say
    let mut v = vec![];
    for part in t.split(".entry ").skip(1) {
        let name = part.split(['(', ' ', '\n']).next().unwrap().to_string();
        let head = part.split(')').next().unwrap();
        let sizes = head
            .lines()
            .filter(|l| l.contains(".param"))
            .map(|l| {
                let ty = l.split('.').nth(2).unwrap_or("").split_whitespace().next().unwrap_or("");
                match ty {
                    "u64" | "b64" | "f64" | "s64" => 8,
                    "u32" | "b32" | "f32" | "s32" => 4,
                    "u16" | "b16" => 2,
                    "u8" | "b8" | "s8" => 1,
                    _ => l
                        .rsplit('[')
                        .next()
                        .and_then(|x| x.split(']').next())
                        .and_then(|x| x.parse().ok())
                        .unwrap_or(0),
                }
            })
            .collect();
        v.push((name, sizes));
    }
    Ok(v)
}
api!(cuModuleLoadData(m: *mut usize, img: *const c_void) true |s| {
    match parse_image(img as _) {
        Ok(v) => {
            let i = s.id();
            s.mods.insert(i, v);
            *m = i;
            OK
        }
        Err(e) => e,
    }
});
api!(cuModuleLoad(m: *mut usize, path: *const c_char) true |s| {
    let p = CStr::from_ptr(path).to_string_lossy().into_owned();
    let Ok(mut b) = std::fs::read(p) else { return 301 };
    b.push(0);
    match parse_image(b.as_ptr()) {
        Ok(v) => {
            let i = s.id();
            s.mods.insert(i, v);
            *m = i;
            OK
        }
        Err(e) => e,
    }
});
api!(cuModuleUnload(m: usize) true |s| {
    if s.mods.remove(&m).is_some() {
        OK
    } else {
        INVALID_HANDLE
    }
});
api!(cuModuleGetFunction(f: *mut usize, m: usize, name: *const c_char) true |s| {
    let n = CStr::from_ptr(name).to_string_lossy().into_owned();
    let Some(md) = s.mods.get(&m) else { return INVALID_HANDLE };
    let Some((_, ps)) = md.iter().find(|x| x.0 == n).cloned() else { return NOT_FOUND };
    let Ok(k) = Kernel::find(&n) else {
        eprintln!("fakecuda: kernel {n} is in the image, but has no CPU version (EXPORT_KERNEL?)");
        return NOT_FOUND;
    };
    let sizes = k.params().to_vec();
    if !ps.is_empty() && ps != sizes {
        eprintln!("fakecuda: kernel {n}: parameters {ps:?} in the image, {sizes:?} in the CPU version: stale PTX?");
        return INVALID_IMAGE;
    }
    let i = s.id();
    s.funcs.insert(i, Func { name: n, k, sizes, max_dyn: 49152 });
    *f = i;
    OK
});
api!(cuModuleGetGlobal_v2(p: *mut u64, n: *mut usize, m: usize, name: *const c_char) true |s| {
    NOT_SUPPORTED
});
api!(cuFuncGetAttribute(v: *mut c_int, a: c_uint, f: usize) true |s| {
    let Some(x) = s.funcs.get(&f) else { return INVALID_HANDLE };
    *v = match a {
        0 => 1024,
        4 => 32,
        8 => x.max_dyn as c_int,
        _ => 0,
    };
    OK
});
api!(cuFuncSetAttribute(f: usize, a: c_uint, v: c_int) true |s| {
    let Some(x) = s.funcs.get_mut(&f) else { return INVALID_HANDLE };
    if a == 8 {
        if v > 232448 {
            return INVALID_VALUE;
        }
        x.max_dyn = v as u32;
    }
    OK
});
api!(cuFuncGetParamInfo(f: usize, i: usize, off: *mut usize, size: *mut usize) true |s| {
    let Some(x) = s.funcs.get(&f) else { return INVALID_HANDLE };
    if i >= x.sizes.len() {
        return INVALID_VALUE;
    }
    let mut o = 0usize;
    for (j, &z) in x.sizes.iter().enumerate() {
        let z = z as usize;
        o = o.div_ceil(z.clamp(1, 8)) * z.clamp(1, 8);
        if j == i {
            *off = o;
            if !size.is_null() {
                *size = z;
            }
            break;
        }
        o += z;
    }
    OK
});
api!(cuOccupancyMaxActiveBlocksPerMultiprocessor(n: *mut c_int, f: usize, bs: c_int, shm: usize) true |s| {
    *n = (2048 / bs.max(32)).min(32).min((233472 / (shm + 1024)) as c_int);
    OK
});
api!(cuLaunchKernel(
    f: usize,
    gx: c_uint,
    gy: c_uint,
    gz: c_uint,
    bx: c_uint,
    by: c_uint,
    bz: c_uint,
    shm: c_uint,
    st: usize,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) true |s| {
    let Some(x) = s.funcs.get(&f) else { return INVALID_HANDLE };
    let n = bx as u64 * by as u64 * bz as u64;
    if gx == 0 || gy == 0 || gz == 0 || n == 0 || n > 1024 || shm > x.max_dyn || gy > 65535 || gz > 65535 {
        eprintln!("fakecuda: bad launch configuration for {}", x.name);
        return INVALID_VALUE;
    }
    let args = x
        .sizes
        .iter()
        .enumerate()
        .map(|(i, &z)| std::slice::from_raw_parts(*params.add(i) as *const u8, z as usize).to_vec())
        .collect();
    s.push(st, Op::Launch { f, grid: [gx, gy, gz], block: [bx, by, bz], shm, args })
});
api!(cuStreamBeginCapture_v2(h: usize, mode: c_uint) true |s| {
    match s.streams.get_mut(&h) {
        Some(x) if h != 0 => {
            x.capture = Some(vec![]);
            OK
        }
        _ => 900,
    }
});
api!(cuStreamEndCapture(h: usize, g: *mut usize) true |s| {
    match s.streams.get_mut(&h).and_then(|x| x.capture.take()) {
        Some(v) => {
            let i = s.id();
            s.graphs.insert(i, v);
            *g = i;
            OK
        }
        None => CAPTURE_INVALID,
    }
});
api!(cuStreamIsCapturing(h: usize, v: *mut c_uint) true |s| {
    *v = s.streams.get(&h).is_some_and(|x| x.capture.is_some()) as c_uint;
    OK
});
api!(cuGraphInstantiateWithFlags(e: *mut usize, g: usize, f: u64) true |s| {
    let Some(v) = s.graphs.get(&g).cloned() else { return INVALID_HANDLE };
    let i = s.id();
    s.graphs.insert(i, v);
    *e = i;
    OK
});
api!(cuGraphLaunch(e: usize, h: usize) true |s| {
    let Some(v) = s.graphs.get(&e).cloned() else { return INVALID_HANDLE };
    for op in v {
        let r = s.push(h, op);
        if r != 0 {
            return r;
        }
    }
    OK
});
api!(cuGraphExecDestroy(e: usize) true |s| {
    if s.graphs.remove(&e).is_some() {
        OK
    } else {
        INVALID_HANDLE
    }
});
api!(cuGraphDestroy(e: usize) true |s| {
    if s.graphs.remove(&e).is_some() {
        OK
    } else {
        INVALID_HANDLE
    }
});
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(e: R, p: *mut *const c_char) -> R {
    err(e, p, 2)
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(e: R, p: *mut *const c_char) -> R {
    err(e, p, 1)
}
unsafe fn err(e: R, p: *mut *const c_char, which: u8) -> R {
    static T: OnceLock<Vec<(R, CString, CString)>> = OnceLock::new();
    match T
        .get_or_init(|| {
            ERRS.iter().map(|x| (x.0, CString::new(x.1).unwrap(), CString::new(x.2).unwrap())).collect()
        })
        .iter()
        .find(|x| x.0 == e)
    {
        Some(x) => {
            *p = if which == 1 { x.1.as_ptr() } else { x.2.as_ptr() };
            OK
        }
        None => INVALID_VALUE,
    }
}
