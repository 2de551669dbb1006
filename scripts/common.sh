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
    umount "$(printf '%b' "$target")" 2>/dev/null || umount -l "$(printf '%b' "$target")" || true
  done
}
