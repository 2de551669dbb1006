#!/usr/bin/env bash
# Runs the long forms of the tests, for a given time or once through.
#
#   sudo scripts/soak.sh [MINUTES]
#
# Without MINUTES each long form runs once (some hours, 100 minutes of them fuzzing); with it, a
# twentieth of each runs, one after another, again and again with new seeds, until the time is over.
# The first failure ends the run and prints how to replay it. core/TESTING.md says what each form promises.
set -euo pipefail
source "$(dirname "$0")/common.sh"
cd "$project_dir"

case "${1:-}" in
  --help | -h) usage; exit 0 ;;
  *[!0-9]*) die "'$1' is not a number of minutes; see --help" ;;
esac
[ $# -le 1 ] || die "one argument at most; see --help"
minutes=${1:-}

scripts/install_deps.sh --test
scripts/build.sh --tests
prepare_fuse || warn "no usable /dev/fuse: the forms that mount are skipped"
if turn_uring_on; then trap turn_uring_off EXIT; fi

passed=0
seed=$(date +%s)
SECONDS=0  # what was built does not count

is_over() { [ -n "$minutes" ] && [ $SECONDS -ge $((minutes * 60)) ]; }
# share N   how much of N runs in one go
share() { if [ -n "$minutes" ]; then echo $(($1 / 20)); else echo "$1"; fi; }

# run NAME PROGRAM FILTER [VARIABLE=VALUE...]   one long form
run() {
  local name=$1 program=$2 filter=$3 start=$SECONDS
  shift 3
  if is_over; then return; fi
  say "run     $name: $* build/$program --gtest_filter='$filter'"
  env "$@" "build/$program" --gtest_filter="$filter" --gtest_brief=1 || die "failed: $name"
  passed=$((passed + 1))
  say "ok      $name ($((SECONDS - start)) s)"
}

# Ten minutes for each fuzz target, or half a minute.
fuzz() {
  if is_over; then return; fi
  scripts/fuzz.sh "$(share 600)" || die "failed: fuzz"
  passed=$((passed + 1))
}

# Each part has its line here: what runs, and the variables that make it long.
round() {
  run "crashes" kvslot_core_tests 'Crash.*' KVSLOT_CRASH_ROUNDS="$(share 10000)" \
    KVSLOT_CRASH_SEED="$seed"0000
  run "interleavings" kvslot_core_tests 'Interleaving.*' KVSLOT_INTERLEAVING_SEED="$seed" \
    KVSLOT_INTERLEAVING_ROUNDS="$(share 1500)"
  run "closing under load" kvslot_core_tests 'ClosingSchedules.*' KVSLOT_CLOSING_ROUNDS="$(share 1000)"
  run "kills" kvslot_system_tests '*/Kill.*' KVSLOT_KILL_ROUNDS="$(share 250)" KVSLOT_KILL_SEED="$seed"
  run "system calls" kvslot_system_tests '*ExercisedFiles*' KVSLOT_FILES_STEPS="$(share 200000)" \
    KVSLOT_FILES_SEED="$seed"
  run "names" kvslot_system_tests '*ExercisedTrees*' KVSLOT_TREES_STEPS="$(share 100000)" \
    KVSLOT_TREES_SEED="$seed"
  run "answers over io_uring" kvslot_system_tests 'Transport.*' KVSLOT_TRANSPORT_ROUNDS="$(share 3000)"
  run "salvage" kvslot_core_tests 'SalvageDevice.Damage*' KVSLOT_SALVAGE_SEEDS="$(share 1000)" \
    KVSLOT_SALVAGE_SEED="$seed"
  run "resources" kvslot_system_tests 'Resources*' KVSLOT_RESOURCES_OPENS="$(share 100000)" \
    KVSLOT_RESOURCES_CREATES="$(share 1000000)" KVSLOT_RESOURCES_LIVES="$(share 100)"
  run "tools" kvslot_system_tests '*Tools*' KVSLOT_TOOL_ROUNDS="$(share 200)" KVSLOT_TOOL_SEED="$seed"
  fuzz
  run "cuts" kvslot_core_tests 'Cuts.*:TornTail.*' KVSLOT_CUTS=1
  # Everything, or another sample each time.
  run "hostile images" kvslot_core_tests '*Hostile*' \
    KVSLOT_HOSTILE_STRIDE="$([ -z "$minutes" ] && echo 1 || echo $((201 + seed % 64 * 2)))"
}

while round && ! is_over && [ -n "$minutes" ]; do
  seed=$((seed + 1))
done
say "$passed passed, 0 failed"
