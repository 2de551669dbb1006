// Programs that keep their data in a store: what they do comes to the same as on ext4.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/compared_tools.h"

namespace kvslot::testing {
namespace {

const std::vector<ToolCase> kPrograms = {
    {"git_from_clone_to_gc", "git", R"sh(
export GIT_AUTHOR_DATE='2001-02-03 04:05:06 +0000' GIT_COMMITTER_DATE='2001-02-03 04:05:06 +0000'
export GIT_CONFIG_NOSYSTEM=1
git config --global user.email a@b; git config --global user.name A
git config --global init.defaultBranch main; git config --global advice.detachedHead false
git init -q r; cd r; for i in $(seq 20); do bytes $i 3000 >f$i; done; mkdir d; ln -s f1 l
echo x >d/x; chmod +x d/x; git add .; git commit -qm 1; git switch -qc other; echo y >d/x
git rm -q f2; git mv f3 d/f3; git commit -qam 2
git switch -q main; ls d; git switch -q other; git status --porcelain; git merge -q main
echo dirty >f1; git stash -q; git stash pop -q; git status --porcelain; git checkout -q f1
git config core.filemode; git config core.symlinks
cd ..; try git clone -q r local; try git clone -q file://$PWD/r far; git -C far switch -q other
git -C local fsck 2>&1; git -C local gc -q --prune=now; git -C local fsck 2>&1
git -C local status --porcelain; git -C local log --all --format=%H%s
git -C r worktree add -q ../tree main; git -C tree rev-parse HEAD; git -C far pack-refs --all
git -C far repack -adfq; git -C far rebase -q main 2>&1; git -C far fsck --full 2>&1
git -C far tag v1; try git -C far push -q origin v1; git -C r tag
git -C r archive other | tar tf - ; git -C r gc -q --aggressive; git -C r fsck --strict
git clone -q --bare r bare; try git -C r push -q ../bare other; git -C bare fsck
git -C r clean -qfdx; GIT_TEST_FSYNC=1 git -C r -c core.fsync=all commit -q --allow-empty -m 3
rm -rf */.git tree/.git bare
)sh"},
    {"make_with_timestamps", "make", R"sh(
cat >Makefile <<'M'
all: a.out
a.out: a.in b.in ; cat a.in b.in >$@; echo made $@
%.in: %.src ; cp $< $@; echo made $@
.PRECIOUS: %.in
M
echo 1 >a.src; echo 2 >b.src
make -s; make -s; touch -d 2001-01-01 *.src; touch -d 2001-01-02 *.in; touch -d 2001-01-03 a.out
make -q && echo current; touch a.src; make -q || echo old; make -s
make -q && echo current; make -st; touch -d '2001-01-01' a.in; make -s; touch -r b.src a.out
touch b.in; make -s -j 4; make -q; echo $?; make -s -W a.src; rm b.in; make -s
for i in $(seq 50); do touch one; touch two; [ two -ot one ] && echo "times went back"; done; true
)sh"},
    {"sqlite_in_every_journal_mode", "sqlite3", R"sh(
for mode in delete truncate persist memory wal off
do for sync in normal $([ $mode = wal ] && echo full); do
  sqlite3 $mode.$sync.db "pragma journal_mode=$mode; pragma synchronous=$sync;
    create table t(a integer primary key, b);
    with recursive c(x) as (select 1 union all select x+1 from c where x<300)
      insert into t select x, printf('%0200d', x) from c;
    update t set b='u' where a%3=0; delete from t where a%7=0;
    pragma integrity_check; select count(*), sum(length(b)) from t"
done; done
sqlite3 wal.full.db 'pragma wal_checkpoint(truncate); vacuum; pragma mmap_size=1000000;
  select count(*) from t; pragma integrity_check; insert into t values(1000,5);
  pragma journal_mode=delete; vacuum'
sqlite3 delete.normal.db ".backup copy.db" ".dump" | md5sum
sqlite3 copy.db 'pragma integrity_check; pragma auto_vacuum=full; vacuum; delete from t;
  select count(*) from t'
ls -A; rm -f *.db*
)sh"},
    {"sqlite_program_killed", "sqlite3", R"sh(
exec 2>/dev/null
for mode in delete truncate persist wal; do db=$mode.db
sqlite3 $db "pragma journal_mode=$mode; create table t(a);
  with recursive c(x) as (select 1 union all select x+1 from c where x<200)
    insert into t select printf('%0500d',x) from c" >/dev/null
printf '%s\n' 'pragma cache_size=5;' 'begin;' "update t set a='broken' || a;" \
    '.shell kill -9 $PPID' | sqlite3 $db >/dev/null 2>&1; echo $?; ls
sqlite3 $db "pragma integrity_check; select count(*), sum(a like 'broken%') from t"; done
rm -f *.db*
)sh"},
    {"sqlite_with_several_writers", "sqlite3", R"sh(
sqlite3 d 'pragma journal_mode=wal; create table t(a)' >/dev/null; sqlite3 e 'create table t(a)'
for w in 1 2 3; do for i in $(seq 6); do echo ".timeout 60000"; echo "insert into t values($w$i);"
done >$T/w$w; sqlite3 d <$T/w$w & sqlite3 e <$T/w$w & done; wait
for db in d e; do sqlite3 $db 'pragma integrity_check; select count(*), count(distinct a) from t'
done; rm -f d* e*
)sh"},
    {"python_files", "python3", R"sh(
program python_files
)sh"},
    {"python_mapped_files", "python3", R"sh(
program python_mapped_files
)sh"},
    {"calls_on_open_files",
     "python3",
     R"sh(
program calls_on_open_files
)sh",
     {{"nowait True", "nowait False"}}},
    {"data_is_found_between_holes", "python3", R"sh(
program data_is_found_between_holes
)sh"},
    {"any_sequence_on_one_file", "python3", R"sh(
program any_sequence_on_one_file $(seq $SEED $((SEED + ROUNDS - 1)))
)sh"},
    {"an_editor_saves", "cp mv", R"sh(
program an_editor_saves
)sh"},
    {"followers_see_what_is_appended", "tail inotifywait", R"sh(
echo 1 >log; coproc tail -s 0.02 -n +1 -f log; read -u ${COPROC[0]} l; echo "$l"; echo 2 >>log
read -u ${COPROC[0]} l; echo "$l"; printf '3\n4\n' >>log; read -u ${COPROC[0]} l; echo "$l"
read -u ${COPROC[0]} l; echo "$l"; kill $COPROC_PID; wait 2>/dev/null
coproc tail -s 0.02 -n +1 -F log 2>/dev/null; read -u ${COPROC[0]} l; mv log log.1; echo new >log
while read -u ${COPROC[0]} l && [ "$l" != new ]; do :; done 2>/dev/null; echo "$l"
kill $COPROC_PID; wait 2>/dev/null
)sh"},
    {"watchers_are_told", "inotifywait", R"sh(
mkdir d; echo x >d/f; coproc inotifywait -m --format '%e %f' d 2>&1
while read -u ${COPROC[0]} l && [ "$l" != 'Watches established.' ]; do :; done
echo y >d/g; cat d/f; mv d/g d/h; rm d/h; mkdir d/s; rmdir d/s; chmod 600 d/f; touch -d @5 d/f
truncate -s 0 d/f; ln -s f d/l; mv d/f .; mv f d/f; setfattr -n user.a -v b d/f; >>d/f
ls d >/dev/null; : >d/end
last=; while read -u ${COPROC[0]} l; do [ "$l" = "$last" ] || echo "$l"; last=$l
[ "$l" = 'CLOSE_WRITE,CLOSE end' ] && break; done; kill $COPROC_PID; wait 2>/dev/null
)sh"},
    {"files_are_locked", "flock", R"sh(
flock l -c 'flock -n l true; echo $?'
flock -s l -c 'flock -sn l echo shared; flock -n l true || echo held'; flock -n l echo free
exec 9>l; flock 9; flock -n l true; echo $?; exec 9>&-; flock -w 60 l echo after
flock . -c 'flock -n . true; echo $?'; flock -o l -c 'echo o'
program files_are_locked
)sh"},
    {"objects_come_from_a_cache", "ccache gcc", R"sh(
export CCACHE_DIR=$PWD/cache CCACHE_HARDLINK=1 CCACHE_COMPILERCHECK=none
echo 'int f(void) { return 1; }' >f.c; for i in 1 2 3; do try ccache gcc -c f.c -o f$i.o; done
cmp f1.o f3.o
ccache --print-stats | grep -E '^(direct_cache_hit|cache_miss|internal_error)'
unset CCACHE_HARDLINK; try ccache gcc -c f.c -o f4.o; cmp f1.o f4.o; ccache -C >/dev/null
try gcc -shared -fPIC f.c -o f.so
printf '#include <stdio.h>\nint f(void); int main(void) { printf("%%d\\n", f()); }\n' >m.c
try gcc m.c f.c -o m; ./m; rm -rf cache m f.so *.o
)sh"},
    {"a_lower_layer_of_an_overlay", "mount umount", R"sh(
mkdir -p low/d low/e $E/up $E/work; bytes 1 90000 >low/f; echo x >low/d/x; echo gone >low/gone
ln -s f low/l; chmod 751 low/d; chown 3:4 low/f; setfattr -n user.a -v b low/f
touch -d @1000000000.123456789 low/f low/d; mkdir $T/m
mount -t overlay overlay -o lowerdir=$PWD/low,upperdir=$E/up,workdir=$E/work $T/m || exit 1
cd $T/m; ls; cmp f - </dev/null 2>/dev/null; md5sum f; echo more >>f
getfattr --only-values -n user.a f; echo; stat -c '%a %u %g %s' f d
echo y >d/x; rm gone; mv e e2 2>&1; mkdir new; mv d/x new/x; rm -r d; mkdir d; ln -s x d/l
cp -a f f2; chmod 600 l; truncate -s 5 f2; mv f2 d/; find . | sort; cd ..; umount m
ls low 2>/dev/null; cd - >/dev/null 2>&1; ls -l $E/up | wc -l
)sh"},
    {"an_upper_layer_of_an_overlay_is_refused",
     "mount umount",
     R"sh(
mkdir low up work $T/m
mount -t overlay overlay -o lowerdir=$PWD/low,upperdir=$PWD/up,workdir=$PWD/work $T/m 2>/dev/null
echo "mount: exit $?"; umount $T/m 2>/dev/null; rm -rf work up
)sh",
     {{"mount: exit 0", "mount: exit 32"}}},
    {"a_mount_below_it", "mount umount", R"sh(
mkdir a b c; echo x >a/f; try mount --bind a b; cat b/f; try rmdir b; try mv b d; try mv a/f b/g
mv b/g .; mount --bind c c; echo y >c/h; try mv c/h .; umount c; umount b; ls a b c; try mv b c
)sh"},
    {"an_image_with_a_file_system", "mkfs.ext4 losetup e2fsck mount umount",
     R"sh(
truncate -s 24M i; try mkfs.ext4 -qF -E root_owner=0:0 i; mkdir $T/m
try mount -o loop i $T/m || exit 1; bytes 1 3000000 >$T/m/f; mkdir $T/m/d; for i in $(seq 100)
do echo $i >$T/m/d/$i; done; sync -f $T/m; rm $T/m/d/5?; try umount $T/m
try e2fsck -fn i 2>/dev/null | tail -n 1 | sed 's/.*: //'; try mount -o loop,ro i $T/m
md5sum <$T/m/f; ls $T/m/d | wc -l; try umount $T/m; rm i
)sh"},
    {"programs_run_from_there", "cp", R"sh(
cp /bin/cat c; printf '#!/bin/sh\necho script $1\n' >s; chmod +x s; ./s a; echo hello | ./c
./c <s >o; cat s | ./c - >/dev/null; { echo x >>c; } 2>&1 | sed 's/.*: //'; ./c & wait; cp s n
chmod -x n; try ./n 2>/dev/null; sh n b
./c <>p >/dev/null; mkfifo $T/p; ./c $T/p & exec 3>$T/p; { : >c; } 2>&1 | sed 's/.*: //'
try truncate -s 1 c; try cp /bin/true c; mv c d; rm d; exec 3>&-; wait; (cd /; "$OLDPWD"/s c)
ln -s s l; ./l d
)sh"},
    {"fio_verifies", "fio", R"sh(
checked() {
  local name=$1; shift
  fio --name=$name --filename=$name --verify=crc32c --verify_state_save=0 --randseed=5 \
      --output=$T/o "$@"
  echo "$name: exit $?"; rm -f $name
}
checked mapped --ioengine=mmap --rw=randwrite --bs=4k-64k --size=512k
checked direct --ioengine=io_uring --rw=randwrite --bs=16k --size=512k --direct=1 --fixedbufs=1 \
    --iodepth=8
)sh"},
};

class ProgramTools : public ComparedTools {};

TEST_P(ProgramTools, DoAsOnExt4) { compare(kPrograms); }

// With these settings a database says that a number is in it when power loss cannot take it away.
TEST_P(ProgramTools, DatabasesKeepWhatTheyCommittedWhenTheDaemonIsKilled) {
  if (run_command({"python3", "-c", "import sqlite3"}).exit_code != 0) GTEST_SKIP() << "no sqlite3";
  for (const std::string mode : {"delete", "wal"}) {
    long said = 0;
    {
      BackgroundCommand writer({"python3", kProgramsFolder + std::string("/sqlite_writer.py"),
                                store().path(mode), mode});
      while (said < 10) {
        const std::string line = writer.read_line();
        ASSERT_FALSE(line.empty()) << mode << " ended after " << said;
        said = std::stol(line);
      }
      DaemonProcess(store().root()).kill();
      for (std::string line; !(line = writer.read_line()).empty();) said = std::stol(line);
    }
    store().mount();
    const std::string found = store().shell(
        "python3 -c 'import sqlite3, sys; run = sqlite3.connect(sys.argv[1]).execute; "
        "print(run(\"pragma integrity_check\").fetchone()[0]); "
        "print(*run(\"select count(*) = max(a), max(a) from t\").fetchone())' $M/" +
        mode);
    ASSERT_EQ(found.substr(0, 5), "ok\n1 ") << mode;
    EXPECT_GE(std::stol(found.substr(5)), said) << mode;
  }
  store().expect_sound();
}

TEST_P(ProgramTools, RecursiveOnesEndWhereTheControlDirectoryIsListed) {
  const MountedStore visible("64M", std::string("control=visible,transport=") + GetParam());
  const CommandResult result = run_shell(R"(
mkdir "$1/d" && echo needle >"$1/d/f" && sync "$1" && mkdir "$2/r" "$2/c" || exit 1
for tool in 'tar cf - "$1" | tar tf -' 'grep -r needle "$1"' 'find "$1" -type f -size -1000' \
    'rsync -a "$1/" "$2/r"' 'cp -r "$1" "$2/c"' 'du -s "$1"' 'ls -lR "$1"'; do
  timeout 120 sh -c "$tool" sh "$1" "$2" >"$2/out" 2>/dev/null
  [ $? -ne 124 ] && [ -s "$2/out" -o -s "$2/r/d/f" ] || echo "$tool"
done
cat "$2/r/d/f" "$2/c/mnt/d/f")",
                                         {visible.root(), visible.outside(".")});
  EXPECT_EQ(result.out, "needle\nneedle\n") << result.err;
}

INSTANTIATE_TEST_SUITE_P(OnBothTransports, ProgramTools, ::testing::Values("dev", "uring"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace kvslot::testing
