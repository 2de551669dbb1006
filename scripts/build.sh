#!/usr/bin/env bash
# Builds build/kvslot.
#
#   scripts/build.sh [--debug] [--coverage] [--sanitize LIST] [--tests] [--jobs N]
#
#   --debug            without optimisation, in build/debug
#   --coverage         counts which lines are run, in build/coverage
#   --sanitize LIST    'address,undefined' in build/asan, 'thread' in build/tsan
#   --tests            everything: the tests too, and a check that each public header stands alone
#   --jobs N           compile N files at once (default: one per processor)
set -euo pipefail
source "$(dirname "$0")/common.sh"

directory=$build_dir
targets=(kvslot)
jobs=$(nproc)
options=(-DCMAKE_BUILD_TYPE=RelWithDebInfo)
while [ $# -gt 0 ]; do
  case "$1" in
    --debug) directory=$build_dir/debug options=(-DCMAKE_BUILD_TYPE=Debug) ;;
    --coverage) directory=$build_dir/coverage options+=(-DKVSLOT_COVERAGE=ON) ;;
    --sanitize)
      case "${2:-}" in
        address*) directory=$build_dir/asan ;;
        thread) directory=$build_dir/tsan ;;
        *) die "--sanitize takes 'address,undefined' or 'thread'" ;;
      esac
      options+=("-DKVSLOT_SANITIZE=$2")
      shift
      ;;
    --tests) targets=(all all_verify_interface_header_sets) ;;
    --jobs)
      [ $# -ge 2 ] || die "--jobs takes a number"
      jobs=$2
      shift
      ;;
    --help | -h) usage; exit 0 ;;
    *) die "unknown option '$1'; see --help" ;;
  esac
  shift
done

for tool in cmake ninja g++ pkg-config; do
  command -v $tool >/dev/null || die "$tool is missing; run: sudo scripts/install_deps.sh"
done
for library in fuse3 liburing libxxhash fmt CLI11; do
  pkg-config --exists $library || die "$library is missing; run: sudo scripts/install_deps.sh"
done
if command -v ccache >/dev/null; then options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi

mkdir -p "$directory" 2>/dev/null && [ -w "$directory" ] || die "cannot write to $directory: whose is it?"
cmake -G Ninja -S "$project_dir" -B "$directory" "${options[@]}" >"$directory/configure.log" 2>&1 ||
  { cat "$directory/configure.log" >&2; die "cmake failed"; }
grep 'libfuse' "$directory/configure.log" || true
cmake --build "$directory" -j "$jobs" --target "${targets[@]}"
