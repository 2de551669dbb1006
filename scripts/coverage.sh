#!/usr/bin/env bash
# Measures which lines and branches of core/ and fs/ the tests run.
#
#   sudo scripts/coverage.sh [REGEX]
#
#   REGEX   only the tests whose names match
#
# Builds with little optimisation in build/coverage, runs the tests there, prints a line for each file and
# the sum, and leaves build/coverage/report.txt. Takes about half an hour on two processors. What a
# killed process ran is not counted: its counters die with it.
set -euo pipefail
source "$(dirname "$0")/common.sh"
cd "$project_dir"

case "${1:-}" in
  --help | -h) usage; exit 0 ;;
  -*) die "unknown option '$1'; see --help" ;;
esac

scripts/install_deps.sh --test
scripts/build.sh --coverage --tests
find build/coverage -name '*.gcda' -delete

say "running the tests"
status=0
ctest --test-dir build/coverage --parallel "$(($(nproc) * 2))" --no-tests=error \
  --timeout 1800 ${1:+--tests-regex "$1"} >build/coverage/tests.log 2>&1 || status=$?
tail -n 3 build/coverage/tests.log

gcovr --root . --object-directory build/coverage --filter core/ --filter fs/ --exclude-throw-branches \
  --exclude-unreachable-branches \
  --txt build/coverage/report.txt --print-summary
cat build/coverage/report.txt
exit $status
