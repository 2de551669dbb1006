# Shared by the other scripts, which source it: the project's folder and a few verbs.

project_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build_dir=$project_dir/build

say() { printf '%s\n' "$*"; }
warn() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }
die() {
  warn "$*"
  exit 1
}

# Prints the comment at the head of the calling script, which is its manual.
usage() { sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"; }

is_root() { [ "$(id -u)" -eq 0 ]; }

# Under sudo, what was built belongs to the user who called it: a later build needs no root.
give_back_build_dir() {
  if is_root && [ -n "${SUDO_UID:-}" ] && [ -d "$build_dir" ]; then
    find "$build_dir" -xdev -user root -exec chown -h "$SUDO_UID:${SUDO_GID:-$SUDO_UID}" {} +
  fi
}

# Unmounts every file system at or below a folder, the innermost first.
unmount_below() {
  local target
  awk -v folder="$1" '$2 == folder || index($2, folder "/") == 1 { print $2 }' /proc/mounts |
    sort -r | while read -r target; do
    target=$(printf '%b' "$target")
    say "a test left mounted: $target"
    # One that does not answer is detached.
    timeout 20 umount "$target" 2>/dev/null || umount -l "$target" || true
  done
}

# Makes /dev/fuse usable where root can: loads the module, creates the node. False where it is not.
prepare_fuse() {
  if is_root; then
    grep -qw fuse /proc/filesystems || modprobe -q fuse 2>/dev/null || true
    if [ ! -e /dev/fuse ] && grep -qw fuse /proc/filesystems; then
      mknod -m 666 /dev/fuse c 10 229 2>/dev/null || true
    fi
  fi
  (exec 3<>/dev/fuse) 2>/dev/null
}

# The kernel's switch for FUSE over io_uring, absent where the kernel has none (before 6.14).
uring_switch=/sys/module/fuse/parameters/enable_uring

# Turns the switch on and says so. False where it was on already, or cannot be changed.
turn_uring_on() {
  [ -e $uring_switch ] && is_root && [ "$(cat $uring_switch)" = N ] || return 1
  { echo Y >$uring_switch; } 2>/dev/null || return 1
  say "turned on FUSE over io_uring: $uring_switch is Y"
}

turn_uring_off() {
  echo N >$uring_switch
  say "put back: $uring_switch is N"
}
