#!/usr/bin/env bash
# Plants faults in a copy of the client's Device tier and checks that a test finds each.
# tests/device_mutants.sh [WORD]: all of them, or those whose name has WORD.
# A line each: the mutant, and the test that found it.
set -euo pipefail
cd "$(dirname "$0")/.."
only=${1:-}
# Always the same folder, so that what does not change is built once.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}"
folder=$CARGO_TARGET_DIR/device-mutants
rm -rf "$folder" && mkdir -p "$folder"
git ls-files -z | xargs -0 cp --parents -t "$folder"
missed=0

# mutant NAME FILE SED TARGET TEST: the expression changes FILE, and TEST of the test target TARGET finds it.
mutant() {
    local name=$1 file=client/src/device/$2 change=$3 target=$4 test=$5
    case $name in *"$only"*) ;; *) return ;; esac
    sed -z -E -i "$change" "$folder/$file"
    if cmp -s "$file" "$folder/$file"; then
        echo "$name: the change does not fit $file any more"
        missed=1
        return
    fi
    local run=(cargo test --manifest-path "$folder/Cargo.toml" -p tierpack-tests --test "$target" -- "$test")
    if timeout 600 "${run[@]}" >"$folder/output" 2>&1; then
        echo "$name: not found by $target::$test"
        missed=1
    elif ! grep -q '^running [1-9]' "$folder/output"; then
        echo "$name: no test ran"
        tail -20 "$folder/output"
        missed=1
    else
        echo "$name -> $target: $(grep -E -m1 '^test .* FAILED' "$folder/output")"
    fi
    cp "$file" "$folder/$file"
}

mutant no_drain tier/table.rs 's/stored\.sort_unstable\(\);/stored.clear();/' \
    device_words a_store_is_seen
mutant lap_unnoticed tier/table.rs 's/if is_lapped \{/if is_lapped \&\& stored.len() == usize::MAX {/' \
    device_words a_store_is_seen
mutant no_guard flight.rs 's/(run: Run, )(load: Load, runs: &Arc<Runs>\) -> Arc<Self> \{)/\1mut \2 load.guards.clear();/' \
    device_coherence a_launch_that_is_pending
mutant no_order tier/launch.rs 's/stream\.wait\(&event\)\?;/drop(event);/' \
    device_coherence launches_on_several_streams
mutant copies_do_not_wait tier/launch.rs 's/if state\.has_steps \{ &state\.flying \} else/if state.has_steps { \&[] } else/' \
    device_coherence launches_on_several_streams
mutant launch_does_not_wait tier/launch.rs 's/else \{ state\.synced\.as_slice\(\) \}/else { \&[] }/' \
    device_coherence launches_on_several_streams
mutant forms_by_index tier/table.rs 's/\*known == number/*known != u32::MAX/' \
    device_graph a_replay_reads
mutant segments_stay tier/table.rs 's/if unmapped == self\.unmapped && !changes\.everything/if !changes.everything/' \
    device_sessions segments_that_come_and_go
mutant no_wrap tier/cache.rs 's/WRAP_AFTER: u64 = 1 << 18/WRAP_AFTER: u64 = 1 << 62/' \
    device_words a_word_that_comes_back_after
mutant neither tier/cache.rs 's/SWEEP_AFTER: u64 = 1 << 16/SWEEP_AFTER: u64 = 1 << 61/;s/WRAP_AFTER: u64 = 1 << 18/WRAP_AFTER: u64 = 1 << 62/' \
    device_words a_word_that_comes_back_after
mutant due_too_early tier/cache.rs 's/(table\.sync\(guard, \(gpu, mode\), work\)\?;)(.*)guard\.changes\(\)/let head = guard.changes(); \1\2head/' \
    device_words a_word_that_comes_back_while
mutant graph_forgotten tier/cache.rs 's/self\.cache\.rewind\(self\.tail\);//' \
    device_words a_graph_that_was_not_refreshed
mutant graph_without_lease tier/graph.rs 's/self\.held\.replace\(\(snapshot, guard\)\)/Some((snapshot, guard))/' \
    device_graph a_replay_reads
exit $missed
