#!/usr/bin/env bash
# Shows kvslot at work, and leaves a mounted store to try: installs what is missing, builds, formats
# an image, mounts it, copies a directory tree in, kills the daemon, mounts again and compares.
#
#   sudo scripts/quickstart.sh [TREE]     TREE is what to copy (default: /usr/include)
#   sudo scripts/quickstart.sh --clean    unmounts the store and removes it
#
# Run again, it keeps the store and replaces the copy. All is below build/quickstart.
set -euo pipefail
source "$(dirname "$0")/common.sh"

kvslot=$build_dir/kvslot
demo=$build_dir/quickstart
image=$demo/store.img
mount_dir=$demo/mnt
control=$mount_dir/.kvslot

step() { printf '\n== %s\n' "$*"; }
run() {
  say "\$ $*"
  "$@"
}

is_mounted() { awk -v folder="$mount_dir" '$2 == folder { found = 1 } END { exit !found }' /proc/mounts; }

# The mount of a killed daemon still stands, and only the kernel can remove it.
unmount() {
  if ! is_mounted; then return 0; fi
  if [ -e "$control/config" ]; then
    run "$kvslot" unmount "$mount_dir"
  else
    run umount "$mount_dir"
  fi
}

clean() {
  unmount
  rm -rf --one-file-system "$demo"
  say "removed build/quickstart"
}

# The first lines of a pseudo-file, with its name.
show() {
  say "--- .kvslot/$1"
  head -n "$2" "$control/$1" | cut -c 1-110
}

copy_while_showing() {
  rm -rf "$mount_dir/tree"
  say "\$ cp -a $tree $mount_dir/tree"
  cp -a "$tree" "$mount_dir/tree" &
  local copy=$! round
  for round in 1 2; do
    sleep 0.3
    if kill -0 $copy 2>/dev/null; then show inflight 4; fi
  done
  wait $copy || die "the copy failed"
  show batches 5
  show stats 12
}

kill_daemon() {
  local pid
  pid=$(awk -F '\t' '$1 == "pid" { print $2 }' "$control/config")
  [ -n "$pid" ] || die "$control/config names no pid"
  run kill -9 "$pid"
  while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
  run umount "$mount_dir"
}

tree=/usr/include
clean=false
case "${1:-}" in
  "") ;;
  --clean) clean=true ;;
  --help | -h) usage; exit 0 ;;
  -*) die "unknown option '$1'; see --help" ;;
  *) tree=$(realpath "$1") ;;
esac
is_root || die "mounting needs root; run: sudo scripts/quickstart.sh ${1:-}"
if $clean; then
  clean
  exit 0
fi
[ -d "$tree" ] || die "$tree is no directory"
trap give_back_build_dir EXIT

step "install and build"
"$project_dir/scripts/install_deps.sh"
"$project_dir/scripts/build.sh"
prepare_fuse || die "no usable /dev/fuse: is the kernel's fuse module there?"
if turn_uring_on; then say "to turn it off again: echo N > $uring_switch"; fi

step "format and mount"
mkdir -p "$demo"
unmount
mkdir -p "$mount_dir"
if [ -e "$image" ]; then
  say "keeping the store of the last run; --clean removes it"
else
  run "$kvslot" format "$image" --size 4G
fi
run "$kvslot" mount "$image" "$mount_dir"

step "copy $(find "$tree" | wc -l) files and directories in"
copy_while_showing

step "make it durable, then kill the daemon"
run sync "$mount_dir"
kill_daemon

step "mount again and compare"
run "$kvslot" mount "$image" "$mount_dir"
run diff -r --no-dereference "$tree" "$mount_dir/tree"
say "identical"

step "it is yours"
say "The store is mounted at $mount_dir; use it like any directory, or look inside:"
say "  cat $control/stats"
say "Unmount it with '$kvslot unmount $mount_dir';" \
  "remove it with 'sudo scripts/quickstart.sh --clean'."
