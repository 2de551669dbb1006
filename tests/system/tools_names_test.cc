// Names, directories, owners, modes and times on a store are what they are on ext4.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/compared_tools.h"

namespace kvslot::testing {
namespace {

const std::vector<ToolCase> kNames = {
    {"names_of_any_bytes", "find ls", R"sh(
program names_of_any_bytes
find . -print0 | sort -z | md5sum; ls -b | tail -n 3; find . -name '*d' | wc -l
rm -- -rfd 2>/dev/null; rm -r -- -rfd; rm -f *; ls -b
)sh"},
    {"long_paths_and_deep_trees", "mkdir find tar rm", R"sh(
program long_paths_and_deep_trees
mkdir t; cd t; for i in $(seq 60); do mkdir $i; cd $i; done; echo deep >f; cd ../../..; pwd -P |
    wc -c; cd "$OLDPWD"; cat f; cd ..; for i in $(seq 59); do cd ..; done; find . -name f | wc -c
tar cf - . | tar tf - | wc -l
cd ..; try cp -r t u; find u | wc -l; mv u/1 v; rm -rf t u v/2/3/4/5; find v
try mkdir -p $(printf 'a/%.0s' $(seq 2100)) 2>/dev/null; mkdir -p $(printf 'q/%.0s' $(seq 60))
rmdir -p $(printf 'q/%.0s' $(seq 60)); find n* -type d | wc -l
find . -name leaf | wc -c; rm -rf n*
)sh"},
    {"each_call_on_each_kind", "python3", R"sh(
program each_call_on_each_kind
)sh"},
    {"each_rename",
     "python3",
     R"sh(
program each_rename
)sh",
     {{"whiteout 0", "whiteout EINVAL"}}},
    {"exchanged_and_not_replaced", "mv", R"sh(
program exchanged_and_not_replaced
echo 1 >m; echo 2 >n; mv -n m n; cat n; mv -n m o; ls
)sh"},
    {"symbolic_links", "ln readlink", R"sh(
py <<'E'
for size in (1, 100, 1000, 4000, 4094, 4095):
    os.symlink("t" * size, "l%d" % size)
    print(len(os.readlink("l%d" % size)), os.lstat("l%d" % size).st_size)
print(said(os.symlink, "t" * 4096, "x"), said(os.symlink, "", "x"), said(os.symlink, "a", "l1"))
E
rm l?*; ln -s b a; ln -s a b; try cat a; ln -s /bin/sh abs; readlink -f abs >/dev/null && echo yes
ln -s d dl; mkdir d; echo x >dl/f; rm dl/f; try rmdir dl; try rmdir dl/; ln -sfn e dl; readlink dl
ln -sf f dl; readlink dl; chown -h 1:2 dl; touch -h -d @9 dl; try chmod 600 dl
ln -s "$(printf 'sp ace\nnewline')" odd; ls -lb odd | sed 's/.*odd/odd/'; cp -P odd odd2; rm a b
ln -s . self; ls self/self/self | wc -l; find -L . -maxdepth 2 2>&1 | sort; stat -c '%F %s %a' dl
ln -srf d/../dl rel; readlink rel; mv dl dl2; try setfattr -h -n user.a -v b dl2
)sh"},
    {"special_files_are_refused",
     "mkfifo mknod",
     R"sh(
tried mkfifo p; tried mknod n p; tried mknod c c 1 3; tried mknod b b 7 99
py <<'E'
import socket
print("socket", said(socket.socket(socket.AF_UNIX).bind, "s"))
print(said(os.mknod, "regular", 0o640 | stat.S_IFREG), said(os.mknod, "plain", 0o600))
E
rm -f p n c b s
)sh",
     {{"ok: mk", "Operation not permitted: mk"}, {"socket None", "socket EPERM"}}},
    {"owners_and_modes", "chmod chown chgrp",
     R"sh(
chmod 777 .; for m in 0 1 7777 644 4711 2755 1777 u+s g+s o+t a-w u=rwX,go=; do : >f; mkdir d
chmod $m f d; stat -c '%a %F' f d; rm -f f; rmdir d; done; echo x >f; chmod 6755 f; chown 1 f
stat -c %a f; chmod 6755 f; chgrp 5 f; stat -c %a f; chmod 2644 f; chown 9:9 f; stat -c %a f
chmod 6755 f; chown :7 f
stat -c %a f; chown 4294967294:5 f; stat -c %u:%g f; mkdir d; chmod 6755 d; chown 3:4 d
stat -c '%a %u %g' d; chown -R --from=3 5 .; ls -ln | tail -n +2 | awk '{print $1, $3, $4, $9}' |
    grep -v '^d'
as 1000 sh -c 'echo y >mine; chmod 4755 mine; chmod 2755 mine; chgrp 5 mine; chown 0 mine;
    chown 1000 mine; chmod 600 f; chgrp 1000 mine; stat -c "%a %u %g" mine; mkdir md;
    chmod 3777 md'
ls -ln mine | awk '{print $1, $3, $4}'
chmod 4777 f; as 1000 sh -c 'echo z >>f'; stat -c %a f; chmod 6777 f; as 1000 truncate -s 0 f
stat -c %a f; chmod 6777 f; echo root >>f; stat -c %a f
chmod 6777 f; truncate -s 9 f; stat -c %a f
as 1000 sh -c 'printf x | dd of=f conv=notrunc status=none'; stat -c %a f
)sh"},
    {"groups_of_new_files", "mkdir chmod", R"sh(
mkdir g; chown 0:77 g; chmod 2777 g; echo x >g/f; mkdir g/d; ln -s f g/l; mkdir -m 700 g/m
install -d g/i
as 1000 sh -c 'echo y >g/u; mkdir g/ud; umask 077; mkdir g/p; : >g/q; chmod 2755 g/u;
    chmod g+s g/ud'
mv g/f .; cp -p f g/f2; cp f g/f3; mkdir g/d/e; stat -c '%n %a %u %g' g/* g/d/e f
umask 0; mkdir u0; : >f0; umask 777; mkdir u777; : >f777; umask 027; mkdir -p n/n/n; : >n/f
mkdir -m 1777 n/s; umask 022; mktemp -d $PWD/tmp.XXXXXX >/dev/null
mktemp $PWD/tmp.XXXXXX >/dev/null; stat -c %a tmp.* | sort; rm -r tmp.*
)sh"},
    {"sticky_directories", "chmod mv rm", R"sh(
mkdir -m 1777 t; chmod 755 .
as 1000 sh -c 'echo a >t/a; mkdir t/ad; echo b >t/b; mkdir t/own; ln -s a t/l'
as 1001 sh -c 'rm -f t/a; mv t/a t/c; rmdir t/ad; echo n >t/n; mv t/n t/b; cat t/a; echo z >>t/a;
    rm -f t/l; mv -T t/n t/n2; echo x >t/own/y; rm t/n2'
as 1000 mv t/b t/bb; as 1000 rm t/bb; ls t
chown 1001 t; as 1001 rm -f t/a; ls t; chmod 777 t/ad; as 1002 rmdir t/ad; cp -p t/l k; rm -r t/own
)sh"},
    {"who_may_do_what", "setpriv", R"sh(
chmod 755 .; for m in 000 400 200 140 604 066 777; do echo x >f$m; chown 1000:1001 f$m
chmod $m f$m; mkdir d$m; echo in >d$m/f; chown -R 1000:1001 d$m; chmod $m d$m; done
for u in 1000 1001 1002; do for f in f*
do as $u sh -c 'cat $1 >/dev/null; : >>$1; [ -r $1 ] && echo r; [ -w $1 ] && echo w;
    [ -x $1 ] && echo x; touch -c $1; touch -c -d @5 $1; truncate -s 3 $1;
    chmod --reference=$1 $1' sh $f 2>&1 |
    sed "s/^/$u $f /"; done
for d in d*
do as $u sh -c 'ls $1; cat $1/f; stat -c %s $1/f; : >$1/new; rm -f $1/new; mkdir $1/n; rmdir $1/n;
    mv $1/f $1/g; mv $1/g $1/f; cd $1' sh $d 2>&1 |
    sed "s/^/$u $d /"; done; done | sort | uniq -c
echo root >r; chmod 0 r; cat r; echo more >>r
as 1000 sh -c 'cat r; rm -f r; mv r s; ln -s x y; setfattr -n user.a -v b r; mkdir z; : >z'
chmod 666 r
as 1000 sh -c 'touch r; echo $?; touch -d @5 r; echo $?; touch -a r; echo $?; touch -m -d now r;
    echo $?'
chmod 600 r; as 1000 touch r
)sh"},
    {"access_lists_are_refused",
     "setfacl getfacl chacl",
     R"sh(
echo x >f; mkdir d
tried setfacl -m u:1000:rw f; tried setfacl -d -m g:5:rx d; tried chacl u::rw-,g::r--,o::r-- f
setfacl -b f; setfacl -b d; getfacl -cn f d; cp -a f g; try cp --preserve=all f h
)sh",
     {{"ok: setfacl", "Operation not supported: setfacl"},
      {"ok: chacl", "Operation not supported: chacl"}}},
    {"extended_attributes", "setfattr getfattr attr", R"sh(
echo x >f; mkdir d; setfattr -n user.one -v 1 f; setfattr -n user.two -v "$(printf 'a\nb')" f
setfattr -n user.empty f; setfattr -n user.d -v 0x00ff00 d; getfattr -d -e hex f d
setfattr -x user.one f; try setfattr -x user.one f; getfattr -d f; try getfattr -n user.none f
cp --preserve=xattr f g; getfattr -d g; mv g h; getfattr -d h
attr -q -s name -V value f; attr -q -g name f; chmod 444 f; setfattr -n user.ro -v root f
chmod 644 f; ln -s f l; try setfattr -h -n user.x -v y l; setfattr -n user.x -v y l
as 1000 sh -c 'getfattr -n user.x f; setfattr -n user.x -v z f'
setfattr -n "user.$(printf 'n%.0s' $(seq 250))" -v long f
try setfattr -n "user.$(printf 'n%.0s' $(seq 251))" -v long f; try setfattr -n user. -v x f
program extended_attributes
)sh"},
    {"attributes_of_the_system_are_refused",
     "setfattr setcap chattr",
     R"sh(
echo x >f; tried setfattr -n trusted.a -v b f; tried setfattr -n security.x -v y f
tried setcap cap_net_raw+ep f; tried chattr +A f; tried setfattr -n system.x -v y f; rm f
)sh",
     {{"ok: setfattr", "Operation not supported: setfattr"},
      {"ok: setcap", "Operation not supported: setcap"},
      {"ok: chattr", "Operation not supported while reading flags on f: chattr"}}},
    {"times_set_in_all_ways",
     "touch",
     R"sh(
touch n; touch -a n; touch -m n; touch -d @0 n; stat -c '%x %y' n; touch -d @-1 a; touch -d @-1.5 b
touch -d '1901-12-14' c; touch -d '2038-01-19 03:14:08' d; touch -d '2106-02-07 06:28:17' e
touch -d '2446-05-10' f; touch -d '2001-02-03 04:05:06.999999999' g; touch -t 200102030405.06 h
touch -r g i; touch -a -d @5 g; touch -m -d @6 h
mkdir dir; touch -d @7.000000001 dir; ln -s n l; touch -h -d @8 l; touch -c none
try touch missing/x; try touch -h none2; touch -d @3 .; stat -c %Y .; : >n2; touch -d @1 n2
echo x >>n2; [ n2 -nt g ] && echo newer; touch -d @1 n2; cat n2; stat -c %Y n2; mv n2 n3
stat -c %Y n3; chmod 600 n3; stat -c %Y n3; cp n3 n3c; touch -d @1 n3; truncate -s 2 n3
[ n3 -nt g ] && echo newer
program times_set_in_all_ways
)sh",
     {{"15032304000.000000000", "9223372036.854775807"}}},
    {"times_that_operations_change", "python3", R"sh(
program times_that_operations_change
)sh"},
    {"the_time_of_birth_is_unknown",
     "stat",
     R"sh(
: >f; mkdir d; for name in f d; do [ "$(stat -c %W $name)" -gt 0 ]; echo "born: $?"; done
)sh",
     {{"born: 0", "born: 1"}}},
    {"directories_listed_while_they_change", "python3", R"sh(
program directories_listed_while_they_change
rm -f s*
)sh"},
    {"trees_removed_by_two_at_once", "rm", R"sh(
mkdir t; for i in $(seq 12); do mkdir -p t/$i/a/b; (cd t/$i
touch $(seq 30) a/$(seq -s ' a/' 20) a/b/x); done; cp -r t u
{ rm -rf t & rm -rf t & rm -rf u; wait; } 2>/dev/null
ls; mkdir t; (for i in $(seq 100); do : >t/$i; done) & (for i in $(seq 100); do rm -f t/$i
done) & (for i in $(seq 20); do ls -l t >/dev/null 2>&1; stat t/* >/dev/null 2>&1; done) & wait
rm -rf t; ls
)sh"},
    {"a_directory_that_is_gone", "rmdir", R"sh(
mkdir -p d/e; cd d/e; rmdir ../e; { ls; echo x >f; mkdir g; cd ..; } 2>&1; pwd; mkdir e; cd e
mv ../e ../f; pwd -P; echo x >x; ls ../f; cd ../..; mkdir -p m/n; exec 3<m/n; rmdir m/n m
ls -l /proc/self/fd/3 | sed 's/.*->//'; stat -L -c '%h %F' /proc/self/fd/3
try mkdir /proc/self/fd/3/x; exec 3<&-
try rmdir d; try rm d; try rmdir .; try rmdir d/f/..; try rm -d d; try unlink d; touch a
try rmdir a; try rmdir a/; try mkdir a/b; try mkdir d; try cd a; try rm -r .; rm -rf d; ls -A
)sh"},
    {"what_find_and_du_say", "find du df ls", R"sh(
mkdir -p d/e; bytes 1 5000 >d/a; : >d/empty; bytes 2 100000 >d/e/b; ln -s a d/l; ln -s none d/x
chmod 4755 d/a; chown 7:8 d/e/b; touch -d '2 days ago' d/e/b; mkdir d/none
for q in '-type d' '-type l' '-empty' '-perm -4000' '-uid 7' '-gid 8' '-size +50k' '-size -2' \
    '-newer d/e/b' '-mtime +1' '-links 1' '-links +2' '-xtype l' '-lname a' '-samefile d/a' \
    '-readable' '-executable' '-cmin -5' '-nouser' '-depth'
do echo "$q:" $(find d $q | sort); done; find d -inum $(stat -c %i d/a)
find d -printf '%p %y %s %m %n %l\n' | grep -v ' d ' | sort; du -b --apparent-size d/a d/e/b
ls -lR --time-style=+ d | grep -v -e '^d' -e total | awk '{print $1, $2, $3, $4, $6, $7, $8}'
ls -lS d | awk '{print $NF}' | tail -n +2 | grep -v none; ls -i d/a | cut -d' ' -f1 |
    grep -c "^$(stat -c %i d/a)$"; find d -empty -delete; find d -type f -delete; find d | sort
stat -f -c '%l %S' .; df --output=target . | tail -n 1 | wc -l
df -P -i . >/dev/null && df -P -k . | awk 'NR==2 {print ($2 > 900000), ($3 >= 0), ($4 > 0)}'
bytes 3 4000000 >big; sync -f big; du -k big | awk '{print ($1 >= 3906 && $1 < 4200)}'
stat -c '%b*%B/512>=%s/512' big | bc 2>/dev/null; truncate -s 10M hole; du -k hole |
    awk '{print ($1 < 100)}'; a=$(df -k --output=used . | tail -n 1); rm big; sync .; true
)sh"},
    {"limits_of_sizes", "truncate head dd", R"sh(
exec 2>/dev/null; (ulimit -f 1; head -c 5000 /dev/zero >f; echo $?); stat -c %s f; (ulimit -f 1
trap '' XFSZ; head -c 5000 /dev/zero >g 2>/dev/null; echo $?; truncate -s 5000 g; echo $?
try dd if=/dev/zero of=h bs=1 seek=1024 count=1 status=none); stat -c %s g h
truncate -s 8G f; printf end >>f; stat -c %s f; tail -c 3 f; cmp -n 100 f /dev/zero; printf x |
    dd of=f bs=1 seek=5G oflag=seek_bytes conv=notrunc status=none
dd if=f bs=1 skip=5368709120 count=1 status=none; rm f
)sh"},
    {"any_sequence_of_operations", "python3", R"sh(
program any_sequence_of_operations $(seq $SEED $((SEED + ROUNDS - 1)))
)sh"},
};

class NameTools : public ComparedTools {};

TEST_P(NameTools, DoAsOnExt4) { compare(kNames); }

TEST_P(NameTools, AreRefusedByReadOnlyMountsAsByExt4) {
  const std::vector<ToolPlace> places = {place_on_ext4("read_only"), place_on_store("read_only")};
  for (const ToolPlace& place : places) {
    (void)outcome_of({.name = "prepare", .tools = "", .script = R"sh(
mkdir -p work/dir work/full/sub; for name in file full/f; do echo x >work/$name; done; cd work
ln -s file link; ln -s dir dirlink; ln -s none dangling; ln -s loop loop
)sh"},
                     place);
  }
  expect_ok(run_command({"mount", "-o", "remount,ro", ext4_root()}));
  store().unmount();
  expect_ok(run_mount(store().outside("store.img"), store().root(),
                      std::string("ro,allow_other,transport=") + GetParam()));
  std::vector<std::string> outcomes;
  for (const ToolPlace& place : places) {
    outcomes.push_back(outcome_of({.name = "refused", .tools = "", .script = R"sh(
program each_call_on_each_kind keep; cd work
for command in 'mv file new' 'mv file full' 'mv dir file' 'mv -T dir full' 'ln file new' \
    'touch file' 'chown 0 file' 'truncate -s 1 file' 'sync file' \
    'dd of=file conv=notrunc' 'mkfifo pipe'; do
  tried $command </dev/null
done
)sh"},
                                  place));
  }
  EXPECT_TRUE(outcomes[0].starts_with("exit 0")) << outcomes[0];
  EXPECT_EQ(difference_of(outcomes[0], outcomes[1]), "");
  expect_ok(run_kvslot({"unmount", store().root()}));
}

INSTANTIATE_TEST_SUITE_P(OnBothTransports, NameTools, ::testing::Values("dev", "uring"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace kvslot::testing
