#!/usr/bin/env bash
# Installs what is missing, builds, and passes every check and test, also under sanitizers.
#
#   sudo scripts/test.sh [--quick] [--only REGEX] [--jobs N]
#   sudo scripts/test.sh --threads [--only REGEX] [--jobs N]
#   scripts/test.sh --fix
#
#   --threads      the tests with several threads under ThreadSanitizer, and nothing else
#   --quick        without the second round under AddressSanitizer and UBSan, and without fuzzing
#   --only REGEX   only the tests whose names match
#   --jobs N       run N tests at once (default: two per processor)
#   --fix          formats the sources, and does nothing else
#
# Tests that mount need root and /dev/fuse and are skipped without; CI=true makes that a failure.
# Images are kept below $TMPDIR, or /var/tmp. What failed is repeated at the end; the last line is
# the sum over checks and tests.
set -euo pipefail
source "$(dirname "$0")/common.sh"
exec </dev/null
cd "$project_dir"

passed=0 failed=0 skipped=0
quick=false threads=false fix=false jobs=$(($(nproc) * 2)) only=()
while [ $# -gt 0 ]; do
  case "$1" in
    --quick) quick=true ;;
    --threads) threads=true ;;
    --fix) fix=true ;;
    --only | --jobs)
      [ $# -ge 2 ] || die "$1 takes a value"
      if [ "$1" = --only ]; then only=(--tests-regex "$2"); else jobs=$2; fi
      shift
      ;;
    --help | -h) usage; exit 0 ;;
    *) die "unknown option '$1'; see --help" ;;
  esac
  shift
done

# ---- Set up, and leave nothing behind ----

choose_scratch() {
  local parent
  for parent in "${TMPDIR:-/var/tmp}" /var/tmp "$build_dir"; do
    # A tmpfs may refuse O_DIRECT, and images in it would take memory.
    if [ -w "$parent" ] && [ "$(stat -f -c %T "$parent")" != tmpfs ]; then
      parent=$(mktemp -d "$parent/kvslot-test.XXXXXX")
      chmod 711 "$parent"  # some tests are other users
      echo "$parent"
      return
    fi
  done
  die "no folder for test images: set TMPDIR to one on a disk"
}

# Nobody else knows the scratch folder's name, so whatever mentions it is ours.
kill_leftovers() {
  local process words
  for process in /proc/[0-9]*; do
    # A process that waits for a mount may keep its own memory from being looked at.
    words=$(timeout 5 cat "$process/cmdline" 2>/dev/null | tr '\0' ' ') || true
    case "$words" in *"$scratch/"*)
      say "a test left a process: $words"
      kill -9 "${process#/proc/}" 2>/dev/null || true ;;
    esac
  done
}

detach_loops() {
  local device file
  losetup --list --noheadings --output NAME,BACK-FILE 2>/dev/null | while read -r device file; do
    case "$file" in "$scratch"/*)
      say "a test left $device on $file"
      losetup --detach "$device" || true ;;
    esac
  done
}

remove_scratch() {
  kill_leftovers
  unmount_below "$scratch"
  detach_loops
  rm -rf --one-file-system "$scratch" || warn "could not remove $scratch"
}

# A mount or a device that does not answer can hold any of its steps for ever: then it goes on
# without them, and without the output that they hold.
remove_scratch_in_time() {
  local log remover
  log=$(mktemp)
  set -m  # a process group of its own, which can be killed as a whole
  remove_scratch >"$log" 2>&1 &
  set +m
  remover=$!
  if ! timeout 120 tail --pid=$remover -f /dev/null; then
    kill -9 -- -$remover
    warn "$scratch could not be removed in time"
  fi
  cat "$log"
  rm -f "$log"
}

uring_turned_on=false
clean_up() {
  trap '' INT TERM
  if [ -n "${scratch:-}" ]; then remove_scratch_in_time; fi
  if $uring_turned_on; then turn_uring_off; fi
  give_back_build_dir
}

finish() {
  local summary="$passed passed, $failed failed"
  if [ "$skipped" -gt 0 ]; then summary+=", $skipped skipped"; fi
  trap - EXIT
  if [ -s "$scratch/failures" ]; then
    say "---- what failed, once more ----"
    tail -n 400 "$scratch/failures"
  fi
  clean_up
  say "$summary"
  [ "$failed" -eq 0 ] || exit 1
  exit 0
}

# ---- Checks: each is one pass or one failure ----

# check NAME COMMAND...   runs quietly; a failure shows the output
check() {
  local name=$1 start=$SECONDS
  shift
  if "$@" >"$scratch/log" 2>&1; then
    passed=$((passed + 1))
    say "ok      $name ($((SECONDS - start)) s)"
  else
    failed=$((failed + 1))
    { tail -n 200 "$scratch/log"; say "FAILED  $name"; } | tee -a "$scratch/failures"
    return 1
  fi
}

sources() { find include core fs tests \( -name '*.h' -o -name '*.cc' \) -print 2>/dev/null; }

check_format() {
  local file bad=0
  while read -r file; do
    clang-format-19 "$file" | cmp -s - "$file" || { say "not formatted: $file"; bad=1; }
  done < <(sources)
  return $bad
}

# GCC ignores the annotations in kvslot/mutex.h; clang proves that every guarded field is locked.
thread_safety() {
  local flags=(-std=c++23 -fsyntax-only -Wthread-safety -Werror=thread-safety -Iinclude
    "-DKVSLOT_VERSION=\"\"" -DKVSLOT_FUSE_RINGS_ARE_SOUND=1 $(PKG_CONFIG_PATH=build/fuse3/lib/pkgconfig pkg-config --cflags fuse3))
  find core -name '*.cc' -print0 |
    xargs -0 -r -n 4 -P "$(nproc)" clang++-19 "${flags[@]}" -Ibuild/view/core &&
    find fs -name '*.cc' -print0 |
    xargs -0 -r -n 4 -P "$(nproc)" clang++-19 "${flags[@]}" -Ibuild/view/fs
}

# ---- Tests ----

# The number that ctest's report gives for a kind of result.
reported() { grep -o -m 1 "$1=\"[0-9]*\"" "$scratch/report.xml" | head -1 | tr -dc 0-9; }

# Name and last words of each test that failed, out of ctest's report.
failed_tests() {
  awk -v name="$1" '
    /<testcase / { lines = 0; failed = /status="fail"/
                   match($0, /name="[^"]*"/); test = substr($0, RSTART + 6, RLENGTH - 7) }
    failed { kept[lines++] = $0 }
    failed && /<\/testcase>/ {
      print "FAILED  " name " test " test
      for (i = lines > 60 ? lines - 60 : 1; i < lines; ++i) print kept[i] }' "$scratch/report.xml" |
    sed 's/&lt;/</g; s/&gt;/>/g; s/&quot;/"/g; s/&amp;/\&/g'
}

# run_tests NAME FOLDER   runs and counts the tests that were built there
run_tests() {
  local name=$1 folder=$2 start=$SECONDS total
  say "        $name tests"
  rm -f "$scratch/report.xml"
  TMPDIR=$scratch ctest --test-dir "$folder" --parallel "$jobs" --output-on-failure \
    --no-tests=error --output-junit "$scratch/report.xml" "${only[@]}" || true
  if [ -s "$scratch/report.xml" ] && total=$(reported tests) && [ "$total" -gt 0 ]; then
    failed=$((failed + $(reported failures)))
    skipped=$((skipped + $(reported skipped)))
    passed=$((passed + total - $(reported failures) - $(reported skipped)))
    failed_tests "$name" >>"$scratch/failures"
  else
    failed=$((failed + 1))
    say "FAILED  $name: no tests ran" | tee -a "$scratch/failures"
  fi
  say "        $name tests took $((SECONDS - start)) s"
}

# A daemon has no terminal, so the sanitizers write to files, and any file is a failure.
run_sanitized_tests() {
  local options="log_path=$scratch/sanitizer:log_exe_name=1"
  ASAN_OPTIONS=$options LSAN_OPTIONS=$options \
    UBSAN_OPTIONS=$options:print_stacktrace=1 run_tests sanitized build/asan
  report_sanitizers
}

report_sanitizers() {
  if compgen -G "$scratch/sanitizer*" >/dev/null; then
    { cat "$scratch"/sanitizer*; say "FAILED  the sanitizers reported the above"; } |
      tee -a "$scratch/failures"
    failed=$((failed + 1))
  fi
}

# CMakeLists.txt says which tests are built for it. Order that comes through a file is not seen (io_sync=0):
# it would hide races between the threads that serve requests.
run_thread_tests() {
  TSAN_OPTIONS="log_path=$scratch/sanitizer:log_exe_name=1:io_sync=0:second_deadlock_stack=1" \
    run_tests threads build/tsan
  report_sanitizers
}

# ---- The run ----

if $fix; then
  command -v clang-format-19 >/dev/null || die "clang-format-19 is missing; run: sudo scripts/install_deps.sh --test"
  sources | xargs --no-run-if-empty clang-format-19 -i
  exit 0
fi

scripts/install_deps.sh --test
scratch=$(choose_scratch)
trap clean_up EXIT
trap 'exit 130' INT TERM

if ! prepare_fuse; then
  if [ "${CI:-}" = true ]; then die "no usable /dev/fuse, and CI=true makes that a failure"; fi
  warn "no usable /dev/fuse: the tests that mount are skipped"
elif ! is_root; then
  warn "not root: the tests that need it are skipped; for all of them: sudo scripts/test.sh"
fi
if turn_uring_on; then uring_turned_on=true; fi

if $threads; then
  check "build with ThreadSanitizer" scripts/build.sh --sanitize thread --tests || finish
  run_thread_tests
  finish
fi

check "format (scripts/test.sh --fix repairs it)" check_format || true
check "build, warnings are errors" scripts/build.sh --tests || finish
check "thread safety, by clang" thread_safety || true
run_tests plain build
if ! $quick; then
  if check "build of the fuzz targets" scripts/fuzz.sh --build; then
    for source in tests/fuzz/*_fuzz.cc; do
      check "fuzz: $(basename "$source" _fuzz.cc)" scripts/fuzz.sh --runs "$(basename "$source" .cc)" || true
    done
  fi
  check "build with sanitizers" scripts/build.sh --sanitize address,undefined --tests || finish
  run_sanitized_tests
fi
finish
