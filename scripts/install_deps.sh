#!/usr/bin/env bash
# Installs what kvslot needs on Debian 12 or a relative of it. Quick when everything is there.
#
#   sudo scripts/install_deps.sh          what scripts/build.sh and the mount need
#   sudo scripts/install_deps.sh --test   also what scripts/test.sh needs
#
# Where the distribution's libfuse is older than 3.18, which cannot talk to the kernel over
# io_uring, it also builds Debian's own newer source package into build/fuse3, with two faults of
# its ring threads repaired (repair_rings below). The source comes from the mirror this machine
# already uses, apt checks its signature, and apt's configuration stays as it is. Where that cannot
# be done, a line says so and the system's libfuse serves.
set -euo pipefail
source "$(dirname "$0")/common.sh"

fuse_version_wanted=3.18
fuse_suite=forky
fuse_prefix=$build_dir/fuse3

build_packages=(
  g++ cmake ninja-build ccache pkg-config
  fuse3 libfuse3-dev liburing-dev libxxhash-dev libcli11-dev libfmt-dev robin-map-dev
  kmod mount diffutils
)
fuse_build_packages=(meson dpkg-dev xz-utils patch libnuma-dev)
test_packages=(
  libgtest-dev libgmock-dev clang-19 clang-format-19 libclang-rt-19-dev
  attr acl rsync sqlite3 git xfsprogs e2fsprogs fio strace procps gcovr
  nbdkit libnbd-bin
  bzip2 inotify-tools libcap2-bin make patch python3 unzip xz-utils zip zstd
)

is_installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# install_missing PACKAGE...   does nothing, quickly, where all are there
install_missing() {
  local missing=() package
  for package in "$@"; do
    is_installed "$package" || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  is_root || die "missing: ${missing[*]}; run: sudo scripts/install_deps.sh${option:+ $option}"
  say "installing: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq </dev/null || die "apt-get update failed; is this machine online?"
  apt-get install -y -qq --no-install-recommends -o Dpkg::Use-Pty=0 "${missing[@]}" \
    </dev/null >"$log" 2>&1 || { tail -20 "$log" >&2; die "apt-get could not install: ${missing[*]}"; }
}

fuse_is_new_enough() {
  PKG_CONFIG_PATH=$fuse_prefix/lib/pkgconfig pkg-config --atleast-version=$fuse_version_wanted fuse3
}

# One that was built here before repair_rings was written has to be built again.
fuse_is_as_wanted() {
  fuse_is_new_enough && { [ ! -e "$fuse_prefix" ] || grep -q '^kvslot_rings=' "$fuse_prefix/lib/pkgconfig/fuse3.pc"; }
}

# The address of the distribution's main archive, as apt itself reads it from its configuration.
mirror() {
  local codename
  codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
  apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Release: $codename" | head -1
}

# Fetches the source package and unpacks it below $work. apt gets a configuration, lists and cache
# of its own there, so nothing of the system's is read but its proxies, or changed.
fetch_fuse() {
  local uri keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  uri=$(mirror)
  [ -n "$uri" ] || { reason="apt names no main archive"; return 1; }
  [ -f $keyring ] || { reason="no Debian archive keyring"; return 1; }
  mkdir -p "$work"/{lists,cache/archives,source}
  echo "deb-src [signed-by=$keyring] $uri $fuse_suite main" >"$work/sources.list"
  local apt=(apt-get -q -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=-
    -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" -o APT::Sandbox::User=root)
  reason="the mirror cannot be reached, or does not serve $fuse_suite's fuse3"
  "${apt[@]}" update --error-on=any && (cd "$work/source" && "${apt[@]}" source fuse3)
}

# substitute FILE TIMES SCRIPT   edits with sed; false unless exactly so many lines end up different
substitute() {
  local file=$1 times=$2 script=$3 changed
  sed "$script" "$file" >"$file.new"
  changed=$(diff "$file" "$file.new" | grep -c '^<' || true)
  mv "$file.new" "$file"
  [ "$changed" -eq "$times" ]
}

# Two faults of 3.18's rings that a reply from another thread than the ring's own can meet:
# - The ring's thread submits without the lock under which others fill in their entries, so it can
#   hand the kernel an entry that is half written, or an old one: a request is answered in place of
#   another, or never. It now submits under the lock, and only waits without.
# - After the reply is on its way the request is still counted down, while the ring's thread may be
#   making the next request of the same memory. Requests of a ring live as long as the ring: they
#   are no longer counted.
repair_rings() {
  reason="its rings are not the ones that the repair knows"
  local rings=$1/lib/fuse_uring.c requests=$1/lib/fuse_lowlevel.c
  substitute "$rings" 1 's|^\t\tio_uring_submit_and_wait(&queue->ring, 1);$|\
\t\tpthread_mutex_lock(\&queue->ring_lock);\
\t\tio_uring_submit(\&queue->ring);\
\t\tpthread_mutex_unlock(\&queue->ring_lock);\
\t\tio_uring_wait_cqe(\&queue->ring, \&(struct io_uring_cqe *){ NULL });|' &&
    substitute "$rings" 3 '/^\tfuse_free_req(req);$/d; /^\treq->ref_cnt++;$/d' &&
    substitute "$requests" 2 '/^static int send_reply_iov(/,/^}/ {
      s|^\tint res;$|\tint res, lives_on = req->flags.is_uring;|
      s|^\tfuse_free_req(req);$|\tif (!lives_on) fuse_free_req(req);|
    }'
}

# fuse_session_custom_io, which only the tests call, is off by default since 3.18.
compile_fuse() {
  local source
  source=$(echo "$work"/source/fuse3-*/)
  repair_rings "$source" || return 1
  reason="its source does not compile here"
  meson setup "$work/build" "$source" --prefix="$fuse_prefix" --libdir=lib --bindir=/usr/bin \
    --buildtype=release -Ddefault_library=static -Denable-io-uring=true -Denable-custom-io=true \
    -Dutils=false -Dexamples=false -Dtests=false -Duseroot=false &&
    ninja -C "$work/build" install &&
    echo 'kvslot_rings=repaired' >>"$fuse_prefix/lib/pkgconfig/fuse3.pc"
}

build_fuse() {
  local have work=$build_dir/fuse3-work reason=
  mkdir -p "$build_dir" 2>/dev/null && [ -w "$build_dir" ] || die "cannot write to $build_dir"
  have=$(pkg-config --modversion fuse3)
  rm -rf "$work" "$fuse_prefix"
  say "libfuse $have is older than $fuse_version_wanted: building Debian $fuse_suite's into build/fuse3"
  if { fetch_fuse && compile_fuse; } >"$log" 2>&1 </dev/null && fuse_is_new_enough; then
    say "libfuse $(PKG_CONFIG_PATH=$fuse_prefix/lib/pkgconfig pkg-config --modversion fuse3) built"
  else
    rm -rf "$fuse_prefix"
    say "no newer libfuse: $reason; going on with $have, without FUSE over io_uring"
  fi
  rm -rf "$work"
}

packages=("${build_packages[@]}")
option=${1:-}
case "$option" in
  "") ;;
  --test) packages+=("${test_packages[@]}") ;;
  --help | -h) usage; exit 0 ;;
  *) die "unknown option '$option'; see --help" ;;
esac
command -v apt-get >/dev/null || die "needs apt-get; elsewhere install the packages it lists by hand"

log=$(mktemp)
trap 'rm -f "$log"; give_back_build_dir' EXIT
install_missing "${packages[@]}"
if ! fuse_is_as_wanted; then
  install_missing "${fuse_build_packages[@]}"
  build_fuse
fi
say "dependencies: complete"
