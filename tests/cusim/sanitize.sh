#!/usr/bin/env bash
# The simulator's tests, and the kernels' conformance tests, with kernels built for a sanitizer.
# tests/cusim/sanitize.sh thread | address [ARGUMENTS OF cargo test]
# `thread` finds lanes that race; `address` (with UBSan) finds overruns, misaligned vectors and shifts by the width.
set -euo pipefail
cd "$(dirname "$0")/../.."
case ${1:-} in
thread) library=libtsan.so ;;
address) library=libasan.so ;;
*)
    echo "usage: $0 thread | address [ARGUMENTS OF cargo test]" >&2
    exit 2
    ;;
esac
path=$("${CXX:-g++}" -print-file-name=$library)
# The compiler answers with the bare name where it has no such file.
[ -e "$path" ] || { echo "no $library: install the sanitizers of ${CXX:-g++}" >&2; exit 1; }
export CUSIM_SAN=$1
shift
# A target folder of its own, so that other builds keep their objects; only the simulator is built anew for each.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/cusim
# ThreadSanitizer cannot see the atomics of Rust's own threads, so what is not instrumented is not reported. That
# hides no race of lanes: kernels are instrumented, and the runtime tells of its copies.
export TSAN_OPTIONS=ignore_noninstrumented_modules=1 ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1
# Few cases: lanes are ten times slower, and the same cases run without a sanitizer in full.
export PROPTEST_CASES=${PROPTEST_CASES:-4}
# The sanitizer must be the first library of the test program, and must not be one of cargo or rustc.
host=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
export "CARGO_TARGET_${host}_RUNNER=env LD_PRELOAD=$path"
if [ $# = 0 ]; then
    set -- --tests
fi
exec cargo test -p tierpack-cusim --features conformance "$@"
