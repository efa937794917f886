#!/usr/bin/env bash
# Fuzzes every target and fails on a finding: tests/fuzz/run.sh [ITERATIONS [SECONDS]].
# A target ends after that many inputs (20000) or seconds (15), whichever comes first.
# Needs cargo and g++ only: libFuzzer comes with a crate, and the stable compiler has what it needs.
# A finding's input stays in the folder that the last line names; run a binary with it as the argument to repeat it.
set -euo pipefail
cd "$(dirname "$0")"
iterations=${1:-20000}
seconds=${2:-15}
host=x86_64-unknown-linux-gnu
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/../../target/fuzz}

# Coverage as libFuzzer reads it, and AddressSanitizer; RUSTC_BOOTSTRAP lets the stable compiler take the latter.
export RUSTC_BOOTSTRAP=1
export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Zsanitizer=address \
-Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
# Leaks need ptrace, which containers refuse.
export ASAN_OPTIONS=detect_leaks=0
cargo build --locked --release --target "$host" --bins
# The seeds are those of their generator, and every target passes them and damaged forms of them.
cargo test --locked --release --target "$host" --lib

# Findings are written below the target folder, and new inputs to a copy of the corpus.
findings=$CARGO_TARGET_DIR/findings
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$findings"

fuzz() {
    cp -r "corpus/$1" "$work/$1"
    "$CARGO_TARGET_DIR/$host/release/$1" -runs="$iterations" -max_total_time="$seconds" -seed=1 -max_len=4096 -timeout=20 \
        -rss_limit_mb=4096 -artifact_prefix="$findings/$1-" "$work/$1" </dev/null >"$work/$1.log" 2>&1
}

# Two at a time: most machines have two cores.
targets=(decode round_trip block_header message client_page)
failed=()
for ((i = 0; i < ${#targets[@]}; i += 2)); do
    pids=()
    for target in "${targets[@]:i:2}"; do
        fuzz "$target" &
        pids+=("$target:$!")
    done
    for pid in "${pids[@]}"; do
        target=${pid%%:*}
        if wait "${pid##*:}"; then
            printf '%-13s %s\n' "$target" "$(grep -o 'Done .*' "$work/$target.log")"
        else
            failed+=("$target")
            printf '%-13s FAILED\n' "$target"
            tail -n 40 "$work/$target.log"
        fi
    done
done
if [ ${#failed[@]} -gt 0 ]; then
    printf 'findings of %s: %s\n' "${failed[*]}" "$findings"
    exit 1
fi
