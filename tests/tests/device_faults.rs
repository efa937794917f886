//! GPUs that are missing, old, full or broken: an error that says what to do, or the documented way out, and nothing
//! that stays behind.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use tierpack_client::{AccessChoice, Client, CodecId, Error, Gpu, GpuConfig, GpuError, Handle};
use tierpack_tests::Daemon;
use tierpack_tests::device::{ACCESSES, Settings, child, in_child, is_as_on_a_gpu, is_child, put_with, say};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const SOCKET: &str = "TIERPACK_SOCKET";

fn start() -> Daemon {
    Daemon::start(PROGRAM, &["--pool-size", "64MiB", "--lock", "off"])
}

fn refusal(config: &GpuConfig) -> GpuError {
    let error = Gpu::open(config).err().and_then(|error| match error {
        Error::Gpu(error) => Some(error),
        _ => None,
    });
    error.expect("a GPU that cannot be used")
}

/// Every function of the driver that the GPU path calls, and how often each is made to fail, one call at a time.
const CALLS: &[(&str, &[u32])] = &[
    ("cuInit", &[1]),
    ("cuDriverGetVersion", &[1]),
    ("cuDeviceGetCount", &[1]),
    ("cuDeviceGet", &[1]),
    ("cuDeviceGetName", &[1]),
    ("cuDeviceGetUuid_v2", &[1]),
    ("cuDeviceGetAttribute", &[1, 4]),
    ("cuDevicePrimaryCtxRetain", &[1]),
    ("cuCtxSetCurrent", &[1, 2, 3, 20, 60, 100]),
    ("cuCtxGetCurrent", &[1, 2, 7, 20, 40, 60, 80, 100]),
    ("cuMemAlloc_v2", &[1, 2, 3, 4, 5]),
    ("cuMemHostAlloc", &[1, 2, 3]),
    ("cuMemHostRegister_v2", &[1, 2]),
    ("cuMemHostGetDevicePointer_v2", &[1, 2]),
    ("cuMemcpyHtoDAsync_v2", &[1, 2, 3, 4]),
    ("cuMemcpyDtoHAsync_v2", &[1, 2, 3, 4]),
    ("cuStreamCreateWithPriority", &[1, 2, 4]),
    ("cuStreamSynchronize", &[1, 2, 3]),
    ("cuStreamWaitEvent", &[1, 2]),
    ("cuEventCreate", &[1, 2, 3]),
    ("cuEventRecord", &[1, 2, 3, 4]),
    ("cuEventSynchronize", &[1, 2, 3]),
    ("cuEventQuery", &[1, 2]),
    ("cuModuleLoadData", &[1]),
    ("cuModuleLoadDataEx", &[1]),
    ("cuModuleGetFunction", &[1, 7]),
    ("cuLaunchKernel", &[1, 2, 3]),
];
/// What gives something back: what fails to be given back stays, and is told by the stand-in.
const RELEASES: &[&str] = &[
    "cuMemFree_v2",
    "cuMemFreeHost",
    "cuMemHostUnregister",
    "cuStreamDestroy_v2",
    "cuEventDestroy_v2",
    "cuModuleUnload",
    "cuDevicePrimaryCtxRelease_v2",
];

/// One of everything that a program does with a GPU.
fn use_a_gpu(handles: &[Handle; 2], bytes: &[Vec<u8>; 2]) -> Result<(), Error> {
    let gpu = Gpu::open(&GpuConfig::new())?;
    let mut first = handles[0].get_to_device(&gpu)?;
    assert!(first.to_host()? == bytes[0]);
    let both = gpu.get_many_to_device(&[&handles[0], &handles[1]])?;
    for (tensor, bytes) in both.iter().zip(bytes) {
        assert!(tensor.to_host()? == *bytes);
    }
    let prefetch = gpu.prefetch(&handles[1])?;
    prefetch.is_ready();
    handles[0].get_to_device_into(&gpu, &mut first)?;
    assert!(prefetch.into_tensor().to_host()? == bytes[1]);
    // Not waited for.
    drop(first);
    Ok(())
}

#[test]
fn a_call_that_fails_once_leaves_nothing_behind() {
    let name = "a_call_that_fails_once_leaves_nothing_behind";
    if is_child() {
        let failed = use_a_gpu_twice();
        failed.iter().for_each(|error| println!("told: {error}"));
        return assert!(failed.len() <= 1, "one call fails once");
    }
    if is_as_on_a_gpu() {
        println!("skipped: an installed driver cannot be made to fail");
        return;
    }
    let daemon = start();
    let (_handle, _) = put_with(&daemon.client(), "ibp", CodecId::Ibp, 50, 2048);
    let (_handle, _) = put_with(&daemon.client(), "raw", CodecId::Raw, 50, 2048);
    let socket = daemon.socket();
    let socket = socket.to_str().expect("a path of a test");
    let mut told = 0;
    let mut run = |call: &str, n: u32, code: u32, access: &str| {
        let fault = format!("{call}:{n}:{code}");
        let setting: Settings<'_> =
            &[(SOCKET, socket), ("FAKE_CUDA_FAIL", &fault), ("TIERPACK_DEVICE_ACCESS", access)];
        let (succeeded, text) = child(name, setting);
        let is_clean = RELEASES.contains(&call) || !text.contains("fakecuda: ");
        assert!(succeeded && text.contains("1 passed") && is_clean, "{fault}, {access}:\n{text}");
        told += usize::from(text.contains("told: "));
    };
    for access in ["auto", "staged"] {
        for (call, times) in CALLS {
            times.iter().for_each(|&n| run(call, n, 1, access));
        }
        RELEASES.iter().for_each(|call| run(call, 1, 1, access));
    }
    for (call, code) in [
        ("cuMemAlloc_v2", 2),
        ("cuMemHostAlloc", 2),
        ("cuMemHostRegister_v2", 2),
        ("cuMemHostRegister_v2", 801),
        ("cuMemHostRegister_v2", 712),
        ("cuLaunchKernel", 719),
        ("cuEventSynchronize", 700),
        ("cuEventQuery", 719),
        ("cuMemAlloc_v2", 900),
        // Newer than any header.
        ("cuEventRecord", 4_000_000_000),
    ] {
        run(call, 1, code, "auto");
    }
    println!("{told} failures came to the caller");
    assert!(told > 100, "only {told} failures came to the caller: are the calls still those that are made?");
    // The leases of all the children are over: also of those that failed in the middle.
    daemon.quiet();
}

/// In a child, in which one call fails: a clean error at most, and after that all is well.
fn use_a_gpu_twice() -> Vec<Error> {
    let client = Client::connect().expect("the parent's daemon");
    let (mut handles, mut bytes) = (Vec::new(), Vec::new());
    for name in ["ibp", "raw"] {
        let handle = client.open(name).expect("the parent has put it");
        bytes.push(handle.get().expect("it is there").to_vec());
        handles.push(handle);
    }
    let handles = <[Handle; 2]>::try_from(handles).expect("two");
    let bytes = <[Vec<u8>; 2]>::try_from(bytes).expect("two");
    let failed: Vec<_> = (0..2).filter_map(|_| use_a_gpu(&handles, &bytes).err()).collect();
    failed.iter().for_each(|error| assert!(matches!(error, Error::Gpu(_)), "{error}"));
    failed
}

#[test]
fn registration_that_fails_is_replaced_by_staging_and_told() {
    let refused = [("FAKE_CUDA_FAIL", "cuMemHostRegister_v2:0:801")];
    let settings: &[Settings<'_>] = &[
        &refused,
        &[("FAKE_CUDA_FAIL", "cuMemHostRegister_v2:3:2")],
        &[("FAKE_CUDA_ATTR_99", "0")],
        &[("FAKE_CUDA_ATTR_113", "0")],
    ];
    if !in_child("registration_that_fails_is_replaced_by_staging_and_told", settings) {
        return;
    }
    let daemon = start();
    let client = daemon.client();
    let gpu = Gpu::open(&GpuConfig::new()).expect("a GPU");
    for codec in [CodecId::Raw, CodecId::Ibp] {
        let (handle, bytes) = put_with(&client, codec.name(), codec, 10, 1 << 20);
        let tensor = handle.get_to_device(&gpu).expect("it fits");
        assert!(tensor.to_host().expect("it is whole") == bytes);
    }
    let access = gpu.access();
    assert_eq!(access.mode.name(), "staged");
    let reason = access.reason.expect("why it is not registered");
    println!("{reason}");
    assert!(reason.contains("cuMemHostRegister") || reason.contains("register"), "{reason}");
    let sessions = daemon.stats().sessions;
    assert!(sessions.iter().any(|session| session.device_access.iter().any(|access| access == "staged")));
    // Who asks for registration hears that it cannot be had.
    let config = GpuConfig::new().access(AccessChoice::Registered);
    let error = match Gpu::open(&config) {
        Ok(gpu) => {
            let (handle, _) = put_with(&client, "t", CodecId::Raw, 5, 1 << 20);
            match handle.get_to_device(&gpu) {
                // The third call was the one that failed.
                Ok(_) => return assert!(access.registered_segments > 0),
                Err(error) => error,
            }
        }
        Err(error) => error,
    };
    let Error::Gpu(error) = error else { panic!("{error}") };
    assert!(matches!(error, GpuError::Registration { code: 801, .. } | GpuError::NoAccess { .. }), "{error}");
}

#[test]
fn a_gpu_that_is_full_says_how_much_is_free() {
    if !in_child("a_gpu_that_is_full_says_how_much_is_free", &[&[("FAKE_CUDA_MEM", "8000000")]]) {
        return;
    }
    let daemon = start();
    let (client, gpu) = (daemon.client(), Gpu::open(&GpuConfig::new()).expect("a GPU"));
    let (long, _) = put_with(&client, "long", CodecId::Raw, 9, 1 << 20);
    let (short, bytes) = put_with(&client, "short", CodecId::Ibp, 9, 1 << 10);
    for _ in 0..3 {
        let error = long.get_to_device(&gpu).expect_err("it is too long");
        assert!(matches!(error, Error::Gpu(GpuError::OutOfMemory { asked: 9_437_184, .. })), "{error}");
        let text = error.to_string();
        assert!(text.contains("of 8000000 bytes of the GPU are free"), "{text}");
        assert!(short.get_to_device(&gpu).expect("it fits").to_host().expect("it is whole") == bytes);
    }
    daemon.quiet();
}

#[test]
fn a_context_that_is_lost_ends_the_leases_too() {
    let settings: &[Settings<'_>] =
        &[&[("FAKE_CUDA_FAIL", "cuEventSynchronize:0:719,cuEventQuery:0:719,cuMemAlloc_v2:9:719")]];
    if !in_child("a_context_that_is_lost_ends_the_leases_too", settings) {
        return;
    }
    let daemon = start();
    let (client, gpu) = (daemon.client(), Gpu::open(&GpuConfig::new()).expect("a GPU"));
    let (handle, bytes) = put_with(&client, "t", CodecId::Raw, 9, 1 << 10);
    let tensor = handle.get_to_device(&gpu).expect("it fits");
    let error = tensor.wait().expect_err("the driver fails");
    assert!(matches!(error, Error::Gpu(GpuError::Lost { .. } | GpuError::Driver { .. })), "{error}");
    daemon.quiet();
    assert!(handle.get().expect("it is there").as_bytes() == bytes, "host memory is as good as ever");
}

#[test]
fn a_driver_that_does_not_say_whether_a_read_is_over_keeps_what_it_reads() {
    let settings: &[Settings<'_>] = &[
        &[("FAKE_CUDA_FAIL", "cuEventSynchronize:0:1,cuEventQuery:0:1")],
        // A launch that fails behind a copy that is queued, on a stream that cannot be waited for.
        &[("FAKE_CUDA_FAIL", "cuLaunchKernel:1:1,cuStreamSynchronize:0:1")],
    ];
    if !in_child("a_driver_that_does_not_say_whether_a_read_is_over_keeps_what_it_reads", settings) {
        return;
    }
    let daemon = start();
    let (client, gpu) = (daemon.client(), Gpu::open(&GpuConfig::new()).expect("a GPU"));
    let (handle, bytes) = put_with(&client, "t", CodecId::Raw, 9, 1 << 10);
    let error = handle.get_to_device(&gpu).and_then(|tensor| tensor.wait()).expect_err("the driver fails");
    assert!(matches!(error, Error::Gpu(GpuError::Launch { .. } | GpuError::Driver { .. })), "{error}");
    // Also when the GPU is closed.
    drop(gpu);
    client.remove("t").expect("it is there");
    let stats = daemon.stats();
    let leases: u64 = stats.sessions.iter().map(|session| session.leases).sum();
    assert!(leases == 1 && stats.pool.held_bytes > 0, "{leases} leases, {} bytes", stats.pool.held_bytes);
    assert!(handle.get().is_ok_and(|read| read.as_bytes() == bytes) || client.open("t").is_err());
}

/// Writes noise over the stored bytes of a tensor's first block, behind its header, in the daemon's own memory.
fn damage(daemon: &mut Daemon, header: &[u8]) -> bool {
    let pid = daemon.process().pid();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("the daemon is alive");
    let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"));
    let Ok(memory) = memory else { return false };
    for line in maps.lines().filter(|line| line.contains("memfd:") && line.contains(" rw-s ")) {
        let range = line.split(' ').next().and_then(|range| range.split_once('-')).expect("a range");
        let number = |text| u64::from_str_radix(text, 16).expect("an address");
        let (start, end) = (number(range.0), number(range.1));
        let mut bytes = vec![0; usize::try_from(end - start).expect("a segment")];
        if memory.read_exact_at(&mut bytes, start).is_err() {
            continue;
        }
        // Blocks start at multiples of 64.
        let found = bytes.chunks(64).position(|unit| unit.starts_with(header));
        if let Some(found) = found {
            return memory.write_all_at(&[0x7F; 1024], start + 64 * found as u64 + 64).is_ok();
        }
    }
    false
}

#[test]
fn a_damaged_block_is_told_with_its_tensor_and_number() {
    if !in_child("a_damaged_block_is_told_with_its_tensor_and_number", ACCESSES) {
        return;
    }
    let mut daemon = start();
    let (client, gpu) = (daemon.client(), Gpu::open(&GpuConfig::new()).expect("a GPU"));
    let (whole, bytes) = put_with(&client, "whole", CodecId::Raw, 50, 2048);
    let (damaged, _) = put_with(&client, "damaged", CodecId::Ibp, 50, 2048);
    // Magic, version 1, and the number of the codec: only the second tensor has such a block.
    let header = [b'T', b'P', b'B', b'1', 1, 0, CodecId::Ibp as u8];
    if !damage(&mut daemon, &header) {
        println!("skipped: the system does not let a test write a daemon's memory");
        return;
    }
    let tensors = gpu.get_many_to_device(&[&whole, &damaged]).expect("they are queued");
    for tensor in &tensors {
        let error = tensor.wait().expect_err("noise is no record");
        assert!(matches!(&error, Error::Damaged { name, block_idx: 0, .. } if name == "damaged"), "{error}");
        assert!(matches!(tensor.to_host(), Err(Error::Damaged { .. })), "again");
    }
    assert!(whole.get_to_device(&gpu).expect("it fits").to_host().expect("it is whole") == bytes);
    drop((tensors, gpu));
    daemon.quiet();
}

#[test]
fn what_is_missing_is_told_with_what_to_do() {
    let name = "what_is_missing_is_told_with_what_to_do";
    let settings: &[Settings<'_>] = &[
        &[
            ("TIERPACK_CUDA_DRIVER", "/nonexistent/libcuda.so"),
            ("WANTED", "no CUDA driver: load /nonexistent/libcuda.so"),
        ],
        &[("TIERPACK_CUDA_DRIVER", "/dev/null"), ("WANTED", "no CUDA driver: load /dev/null")],
        &[
            ("FAKE_CUDA_VERSION", "12020"),
            ("WANTED", "the CUDA driver is for CUDA 12.2, CUDA 13.0 is needed"),
        ],
        &[
            ("FAKE_CUDA_DEVICES", "0"),
            ("WANTED", "the CUDA driver sees no GPU: look at CUDA_VISIBLE_DEVICES"),
        ],
        &[
            ("FAKE_CUDA_ATTR_75", "7"),
            ("FAKE_CUDA_ATTR_76", "5"),
            ("WANTED", "has compute capability 7.5, 8.0 is needed"),
        ],
        &[
            ("TIERPACK_DEVICE_ACCESS", "ats"),
            ("WANTED", "access ats: the GPU cannot read pageable memory"),
            ("FAKE_CUDA_ATTR_88", "0"),
        ],
        &[
            ("TIERPACK_DEVICE_ACCESS", "fast"),
            ("WANTED", "TIERPACK_DEVICE_ACCESS is \"fast\": one of auto, ats"),
        ],
        &[
            ("FAKE_CUDA_FAIL", "cuModuleLoadData:1:209,cuModuleLoadDataEx:1:209"),
            ("WANTED", "load the kernels \"decode\" for compute capability 9.0"),
        ],
    ];
    if !in_child(name, settings) {
        return;
    }
    let daemon = start();
    let client = daemon.client();
    let (handle, bytes) = put_with(&client, "t", CodecId::Ibp, 9, 1 << 10);
    let error = refusal(&GpuConfig::new()).to_string();
    let wanted = std::env::var("WANTED").expect("this test sets it");
    assert!(error.contains(&wanted), "{error}");
    // All that needs no GPU works.
    assert!(handle.get().expect("it is there").as_bytes() == bytes);
    assert!(daemon.run_ok(&["ls"]).contains('t'));
}

#[test]
fn a_gpu_that_there_is_not_is_named() {
    if !in_child("a_gpu_that_there_is_not_is_named", &[&[]]) {
        return;
    }
    let error = refusal(&GpuConfig::new().ordinal(77)).to_string();
    assert!(error.starts_with("there is no GPU 77: the driver sees "), "{error}");
}

/// A library with these functions of a driver.
fn stub(folder: &Path, version: i32) -> String {
    let source = folder.join("stub.c");
    let text =
        format!("int cuInit(unsigned f){{return 0;}}int cuDriverGetVersion(int*v){{*v={version};return 0;}}");
    std::fs::write(&source, text).expect("a file of a test");
    let library = folder.join("libstub.so");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let status = Command::new(compiler).args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(status.expect("a C compiler, which the stand-in is built with too").success());
    library.to_str().expect("a path of a test").to_owned()
}

#[test]
fn a_driver_that_lacks_functions_is_no_panic() {
    if is_child() {
        let error = refusal(&GpuConfig::new());
        let wanted = std::env::var("WANTED").expect("this test sets it");
        return assert!(error.to_string().contains(&wanted), "{error}");
    }
    if is_as_on_a_gpu() {
        // Where the installed driver is asked for, there may be no compiler.
        return say("skipped: a driver that lacks functions is not the installed one");
    }
    let folder = tempfile::tempdir().expect("a temporary directory");
    for (version, wanted) in [(12020, "CUDA 13.0 is needed"), (13000, "the CUDA driver has no function cu")] {
        let library = stub(folder.path(), version);
        let setting: Settings<'_> = &[("TIERPACK_CUDA_DRIVER", &library), ("WANTED", wanted)];
        let (succeeded, text) = child("a_driver_that_lacks_functions_is_no_panic", setting);
        assert!(succeeded && text.contains("1 passed"), "{text}");
    }
}
