#!/usr/bin/env bash
# The simulator's tests, and the kernels' conformance tests, with kernels built for a sanitizer.
# tests/cusim/sanitize.sh thread | address
# `thread` finds lanes that race; `address` (with UBSan) finds overruns, misaligned vectors and shifts by the width.
set -euo pipefail
cd "$(dirname "$0")/../.."
case ${1:-} in
thread) library=libtsan.so ;;
address) library=libasan.so ;;
*)
    echo "usage: $0 thread | address" >&2
    exit 2
    ;;
esac
export CUSIM_SAN=$1
# A target folder of its own: objects with and without a sanitizer do not link.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/cusim-$1
# ThreadSanitizer cannot see the atomics of Rust's own threads, so what is not instrumented is not reported. That
# hides no race of lanes: kernels are instrumented, and the runtime tells of its copies.
export TSAN_OPTIONS=ignore_noninstrumented_modules=1 ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1
# The sanitizer must be the first library of the test program, and must not be one of cargo or rustc.
host=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
export "CARGO_TARGET_${host}_RUNNER=env LD_PRELOAD=$("${CXX:-g++}" -print-file-name=$library)"
cargo test -p tierpack-cusim --test simulator --test gather
