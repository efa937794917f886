#!/usr/bin/env bash
# Plants faults in copies of the kernels and checks that a test, or a sanitizer, finds each.
# tests/cusim/mutants.sh [WORD]: all of them, or those whose name has WORD.
# A line each: the mutant, and what found it. They guard the guards: a suite that lets one pass is blind.
set -euo pipefail
cd "$(dirname "$0")/../.."
only=${1:-}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
missed=0

# What found the fault in a run's output: the report that this kind of run is for; nothing for any other failure.
found() {
    local how=$1 test=$2
    case $how in
    thread) grep -oE -m1 'SUMMARY: ThreadSanitizer: data race.*|WARNING: ThreadSanitizer: data race' "$folder/output" || true ;;
    address) grep -oE -m1 'SUMMARY: AddressSanitizer.*|ERROR: AddressSanitizer.*|runtime error: .*' "$folder/output" || true ;;
    plain) grep -oE -m1 "^test [a-z_:0-9]*$test[a-z_:0-9]* \.\.\. FAILED" "$folder/output" || true ;;
    esac
}

# mutant NAME FILE SED PLAIN|THREAD|ADDRESS TEST [MODULE]: the expression changes FILE, and TEST of the suite finds it.
mutant() {
    local name=$1 file=$2 change=$3 how=$4 test=$5 module=${6:-decode}
    local suite
    case $module in decode) suite=conformance ;; *) suite=$module ;; esac
    local report
    case $name in *"$only"*) ;; *) return ;; esac
    # Only what the kernels of one module are made of: modules that no mutant is in need no build.
    rm -rf "$folder/cuda" && mkdir "$folder/cuda"
    cp kernels/cuda/*.cuh kernels/cuda/*.h "kernels/cuda/$module.cu" "$folder/cuda"
    sed -z -E -i "$change" "$folder/cuda/$file"
    if cmp -s "kernels/cuda/$file" "$folder/cuda/$file"; then
        echo "$name: the change does not fit $file any more"
        missed=1
        return
    fi
    export CUSIM_KERNELS=$folder/cuda
    local run=(env "CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/cusim" cargo test -p tierpack-cusim --features conformance)
    [ "$how" = plain ] || run=(tests/cusim/sanitize.sh "$how")
    if "${run[@]}" --test "$suite" -- "$test" >"$folder/output" 2>&1; then
        echo "$name: not found by $test ($how)"
        missed=1
    elif ! grep -q '^running [1-9]' "$folder/output"; then
        echo "$name: no test ran"
        tail -20 "$folder/output"
        missed=1
    else
        report=$(found "$how" "$test")
        if [ -z "$report" ]; then
            echo "$name: not found by $test ($how), which failed in another way"
            tail -20 "$folder/output"
            missed=1
        else
            echo "$name -> $test ($how): $report"
        fi
    fi
}

mutant syncwarp_after_wait records.cuh 's/(wait_for_stage\(places.n_stages\);\n) +__syncwarp\(team.mask\);\n/\1/' \
    thread every_codec_dtype_and_access
mutant syncwarp_after_last_read records.cuh 's/(codec.decode\(team, job, record, status\);\n) +__syncwarp\(team.mask\);\n/\1/' \
    plain tensors_of_many_blocks
mutant tail_of_a_store records.cuh 's/if \(i < n\) to\[i\]/if (i <= n) to[i]/' plain every_length_of_rows
mutant rest_of_a_record records.cuh 's/if \(offset > overflow_len\) \{/if (false) {/' plain changed_heads
mutant row_of_an_overlay overlay.cuh 's/if \(row >= [^{]*\{/if (false) {/' address a_row_that_the_block_lacks
mutant dictionary_of_another_tensor decode.cu 's/job.form != loaded \&\& form/loaded == 0 \&\& form/' \
    plain sparse_tensors_with_different_dictionaries
mutant tag_after_the_copy cache.cuh 's/const bool same = __all_sync[^;]*;/const bool same = true;/' \
    plain no_row_is_mixed_on_many_threads gather
mutant word_of_a_line cache.cuh 's/ld_relaxed_gpu\(&set->words\[i\]\) == word && //' plain every_store_is_a_miss gather
mutant syncwarp_after_fetch gather.cuh 's/(cp_async_wait<0>\(\);\n) +__syncwarp\(team.mask\);\n/\1/' \
    thread every_codec_and_dtype gather

exit $missed
