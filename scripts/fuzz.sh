#!/usr/bin/env bash
# Builds the fuzz targets of tests/fuzz with clang and runs each: first every input of its corpus, then
# new ones.
#
#   scripts/fuzz.sh [SECONDS] [TARGET...]
#   scripts/fuzz.sh --runs [TARGET...]     as CI does it: a fixed number of inputs from a fixed seed
#   scripts/fuzz.sh --build                only builds them
#
#   SECONDS   for each target (default: 60)
#   TARGET    such as image or image_fuzz (default: all)
#
# The corpora are tests/fuzz/corpus/<target>, which are kept, build/fuzz/seeds/<target>, made here,
# and build/fuzz/found/<target>, what earlier runs have found. The input that breaks a promise is
# left in build/fuzz/broken; a line says how to run it again.
set -euo pipefail
source "$(dirname "$0")/common.sh"
cd "$project_dir"

fuzz_dir=$build_dir/fuzz
seconds=60
is_fixed=false only_builds=false
case "${1:-}" in
  --help | -h) usage; exit 0 ;;
  --runs) is_fixed=true; shift ;;
  --build) only_builds=true; shift ;;
  [0-9]*) seconds=$1; shift ;;
  -*) die "unknown option '$1'; see --help" ;;
esac
[[ $seconds =~ ^[0-9]+$ ]] || die "'$seconds' is not a number of seconds; see --help"

# How many inputs a short run makes; those that open stores take a hundred times longer.
runs_of() {
  case "$1" in
    image_fuzz | keys_fuzz) echo 300 ;;
    journal_fuzz) echo 500 ;;
    *) echo 20000 ;;
  esac
}

build() {
  command -v clang++-19 >/dev/null || die "clang-19 is missing; run: sudo scripts/install_deps.sh --test"
  local options=(-DCMAKE_CXX_COMPILER=clang++-19 -DCMAKE_C_COMPILER=clang-19 -DKVSLOT_FUZZ=ON)
  if command -v ccache >/dev/null; then options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
  mkdir -p "$fuzz_dir"
  cmake -G Ninja -S . -B "$fuzz_dir" "${options[@]}" >"$fuzz_dir/configure.log" 2>&1 ||
    { cat "$fuzz_dir/configure.log" >&2; die "cmake failed"; }
  cmake --build "$fuzz_dir" -j "$(nproc)" --target fuzz_seeds "${targets[@]}"
  rm -rf "$fuzz_dir/seeds"
  "$fuzz_dir/fuzz_seeds" "$fuzz_dir/seeds"
}

# Nothing may hang, leak, or ask for memory because an unverified length says so. The time limit is
# by the wall clock: long enough that a machine which stands still for a minute is no hang.
fuzz() {
  local target=$1 start=$SECONDS log=$fuzz_dir/$1.log
  local found=$fuzz_dir/found/$target broken=$fuzz_dir/broken
  local limits=(-timeout=600 -rss_limit_mb=2048 -malloc_limit_mb=64 -max_len=262144
    -print_final_stats=1 -verbosity=1 "-artifact_prefix=$broken/$target-")
  local corpora=("$fuzz_dir/seeds/$target")
  if [ -d "tests/fuzz/corpus/$target" ]; then corpora+=("tests/fuzz/corpus/$target"); fi
  mkdir -p "$found" "$broken"
  if $is_fixed; then
    limits+=("-runs=$(runs_of "$target")" -seed=1)
    found=$(mktemp -d "$fuzz_dir/found.XXXXXX")  # what was found before must not change the run
  else
    limits+=("-max_total_time=$seconds")
  fi
  local code=0
  "$fuzz_dir/$target" "${limits[@]}" "$found" "${corpora[@]}" >"$log" 2>&1 || code=$?
  if $is_fixed; then rm -rf "$found"; fi
  if [ $code -ne 0 ]; then
    tail -n 60 "$log"
    die "$target broke a promise; again: build/fuzz/$target $(sed -n 's/.*Test unit written to //p' "$log" | tail -1)"
  fi
  say "ok      $target: $(awk '/stat::number_of_executed_units/ {print $2}' "$log") inputs," \
    "$(grep -o 'cov: [0-9]*' "$log" | tail -1) edges, $((SECONDS - start)) s"
}

all=()
for source in tests/fuzz/*_fuzz.cc; do all+=("$(basename "$source" .cc)"); done
targets=()
for name in "$@"; do
  [ -f "tests/fuzz/${name%_fuzz}_fuzz.cc" ] || die "no target '$name'; there are: ${all[*]}"
  targets+=("${name%_fuzz}_fuzz")
done
[ ${#targets[@]} -gt 0 ] || targets=("${all[@]}")
build
if $only_builds; then exit 0; fi
export ASAN_OPTIONS=quarantine_size_mb=16  # more of it costs page faults and finds nothing here
for target in "${targets[@]}"; do fuzz "$target"; done
say "${#targets[@]} fuzz targets passed"
