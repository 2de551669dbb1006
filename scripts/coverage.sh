#!/usr/bin/env bash
# Measures which lines and branches of core/ and fs/ the tests run.
#
#   sudo scripts/coverage.sh [REGEX]
#
#   REGEX   only the tests whose names match
#
# Builds with little optimisation in build/coverage, runs the tests there, prints a line for each file and
# the sum, and leaves build/coverage/report.txt and report.json. Takes about half an hour on two
# processors. What a killed process ran is not counted: its counters die with it.
set -euo pipefail
source "$(dirname "$0")/common.sh"
cd "$project_dir"

case "${1:-}" in
  --help | -h) usage; exit 0 ;;
  -*) die "unknown option '$1'; see --help" ;;
esac
[ $# -le 1 ] || die "one argument at most; see --help"

scripts/install_deps.sh --test
scripts/build.sh --coverage --tests

# Some tests run the command as other users, so everybody may add to the counters.
find build/coverage -name '*.gcda' -delete
find build/coverage -name '*.gcno' -print0 | sed -z 's/gcno$/gcda/' |
  xargs -0 sh -c 'touch "$@" && chmod 666 "$@"' counters

say "running the tests"
status=0
ctest --test-dir build/coverage --parallel "$(($(nproc) * 2))" --no-tests=error \
  --timeout 1800 ${1:+--tests-regex "$1"} >build/coverage/tests.log 2>&1 || status=$?
sed -n '/tests passed/,$p' build/coverage/tests.log
find build/coverage -name '*.gcda' -empty -delete

gcovr --root . --filter core/ --filter fs/ --exclude-throw-branches --exclude-unreachable-branches \
  -j "$(nproc)" --txt build/coverage/report.txt --json build/coverage/report.json --print-summary \
  build/coverage
cat build/coverage/report.txt
exit $status
