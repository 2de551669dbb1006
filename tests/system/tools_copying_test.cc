// Copying, moving, archiving and editing files on a store comes to the same as on ext4.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/compared_tools.h"

namespace kvslot::testing {
namespace {

const std::vector<ToolCase> kCopies = {
    {"cp_keeps_everything", "cp diff setfattr", R"sh(
mkdir -p s/sub; bytes 1 100000 >s/a; : >s/empty; echo x >s/sub/x; ln -s a s/link
ln -s /nowhere s/dangling
chown -h 12:34 s/sub/x s/link; chmod 640 s/a; chmod 6755 s/sub/x; chmod 1777 s/sub
setfattr -n user.a -v 1 s/a; setfattr -n user.dir -v 2 s/sub
touch -d '2001-02-03 04:05:06.123456789' s/a s/sub/x s/sub s; touch -h -d @86400 s/link
try cp -a s d; try diff -r --no-dereference s d
cp -p s/a p; cp -r s r; cp -L s/link followed; cp -P s/link kept; cp -RH s h; find d -newer s/sub |
    sort
)sh"},
    {"cp_over_what_is_there", "cp", R"sh(
echo short >s; bytes 1 300000 >long; cp long f; cp s f; cat f; touch -d @1 s; cp -u long s
cp -n s long
cp --backup=numbered s f
chmod 400 s; try cp f s; try cp -f long s; try cp --remove-destination f s
try cp --attributes-only long a
try cp -T s dir/; mkdir dir dir2; try cp s dir; try cp -r dir dir/in; try cp -rT dir dir2
try cp dir f
try cp s s; try cp s nowhere/f; ln -s f link; try cp s link; try cp --parents dir/s dir2; (cd dir
try cp -s ../s symbolic; ls); try cp -s s symbolic
try cp -r --copy-contents dir/. dir2/copy; try cp missing x; ln -s nowhere dangling
try cp s dangling
)sh"},
    {"cp_sparse", "cp truncate dd cmp", R"sh(
truncate -s 3M holes; printf x | dd of=holes bs=1 seek=2000000 conv=notrunc status=none
for how in always never auto; do cp --sparse=$how holes $how; cmp holes $how
cp --reflink=auto --sparse=$how holes r$how; done
try cp --reflink=always holes clone; cp $T/../nothing x 2>/dev/null; cp holes $T/out
cmp holes $T/out; cp --sparse=always $T/out in; cmp in holes
)sh"},
    {"mv_in_all_ways", "mv", R"sh(
echo a >a; echo b >b; mkdir d e full full/x; mv a b; cat b; mv b d; mv d/b d/c; mv d e; mv -T e g
ls -R g
echo 1 >x; echo 2 >y; mv -n x y; mv -b x y; mv -u y y2; mv -t g y2; mkdir t; try mv -T t full
try mv t t/in
try mv -T y~ full; try mv missing x; try mv g g; try mv full/ renamed/; try mv y~/ z; ln -s g l
mv l moved; mv -v renamed r2
try mv -T r2 moved; chmod 0 y~; mv -f y~ y3; try mv --no-copy y3 y4; echo e >y5
mv --strip-trailing-slashes y5/ y6
)sh"},
    {"mv_between_file_systems", "mv setfattr", R"sh(
mkdir -p $T/tree/sub; bytes 2 200000 >$T/tree/f; ln -s f $T/tree/sub/l; chmod 2750 $T/tree/sub
chown 5:6 $T/tree/f
touch -d '1999-12-31 23:59:59.999999999' $T/tree/f $T/tree/sub; mv $T/tree .; ls $T
mv tree $T/back; ls; mv $T/back again
echo x >$T/x; echo old >x; mv $T/x .; cat x; mv x $T/; cat $T/x
)sh"},
    {"install_in_all_ways", "install", R"sh(
bytes 3 5000 >s; touch -d @1000000 s; try install -m 640 -o 12 -g 34 -D s a/b/c
try install -d -m 2755 x/y/z; try install -p s p
try install -b s p; try install -C s q; try install -C s q; try install -t x s
try install -m 4755 s x/suid; try install s missing/x
)sh"},
    {"hard_links_are_refused",
     "ln cp",
     R"sh(
echo x >a; mkdir d; ln -s a s
tried ln a b; tried cp -l a c; tried cp -al d e; tried cp -al . $PWD/../copy_of_links
tried ln -P s u; tried ln a d/a; tried ln -f a s; tried ln d f; tried ln missing f
rm -rf ../copy_of_links *
)sh",
     {{"ok: ln ", "Operation not permitted: ln "},
      {"ok: cp -l", "Operation not permitted: cp -l"},
      {"ok: cp -al .", "Operation not permitted: cp -al ."}}},
    {"archives_with_hard_links",
     "tar cp rsync",
     R"sh(
mkdir $T/s; echo x >$T/s/a; ln $T/s/a $T/s/b; tar -C $T -cf $T/t.tar s
copied() { local name=$1; shift; "$@" 2>/dev/null; echo "$name: exit $?, $(ls to/s | wc -l) files"
rm -r to/s; }
mkdir to
copied tar tar -C to -xf $T/t.tar
copied 'cp -a' cp -a $T/s to
copied 'rsync -aH' rsync -aH $T/s to
copied 'cp -r' cp -r $T/s to
copied 'rsync -a' rsync -a $T/s to
cp -r $T/s to; copied 'rsync --link-dest' rsync -a --link-dest=$PWD/to/s $T/s to
)sh",
     {{"tar: exit 0, 2 files", "tar: exit 2, 1 files"},
      {"cp -a: exit 0, 2 files", "cp -a: exit 1, 1 files"},
      {"rsync -aH: exit 0, 2 files", "rsync -aH: exit 23, 1 files"}}},
    {"rsync_twice", "rsync setfattr", R"sh(
mkdir -p $T/s/sub; bytes 1 150000 >$T/s/a; echo b >$T/s/sub/b; ln -s a $T/s/l; chmod 600 $T/s/sub/b
touch -d @1000000000.5 $T/s/a; touch -d @1000000001 $T/s $T/s/sub
setfattr -n user.x -v y $T/s/a; rsync -aX $T/s/ d; rsync -aXi $T/s/ d; touch -d @1000000002 $T/s/a
echo b2 >$T/s/sub/b; touch -d @1000000003 $T/s/sub/b; rsync -aXi $T/s/ d
rm $T/s/l; touch -d @1000000004 $T/s; rsync -ai --delete $T/s/ d
rsync -ai d/ d2; rsync -ain --checksum d/ d2
rsync -a d2/ $T/back; rsync -ain $T/s/ $T/back
rsync -a --link-dest=$PWD/d $T/s/ d3; diff -r d d3; rm -r d3
try rsync -a --fake-super --chown=1:1 $T/s/ fake
)sh"},
    {"rsync_in_place", "rsync cmp dd", R"sh(
bytes 1 400000 >$T/f; rsync() { command rsync -I "$@"; }; rsync --inplace $T/f f; printf changed |
    dd of=$T/f bs=1 seek=123456 conv=notrunc status=none
rsync --inplace --no-W $T/f f; cmp $T/f f; bytes 2 1000 >>$T/f; rsync --append $T/f f; cmp $T/f f
bytes 3 1000 >>$T/f
rsync --append-verify $T/f f; cmp $T/f f; truncate -s 5000 $T/f; rsync --inplace $T/f f; cmp $T/f f
truncate -s 2M $T/f
rsync --sparse $T/f g; cmp $T/f g; rsync --partial --no-W $T/f f; rsync --preallocate $T/f p
cmp $T/f p; rsync -a --temp-dir=$PWD --delay-updates $T/f u/; ls -A . u
)sh"},
    {"tar_in_and_out", "tar setfattr diff gzip",
     R"sh(
mkdir -p s/d; bytes 1 60000 >s/a; echo x >s/d/x; ln -s d/x s/l; setfattr -n user.k -v v s/a
setfattr -n user.e -v '' s/d; chmod 4751 s/d/x; chmod 1770 s/d
chown 7:8 s/a; touch -d '2001-02-03 04:05:06.123456789' s/a s/d/x s/d; truncate -s 1M s/hole
printf q >>s/hole
tar --xattrs --format=posix -cSf t.tar s; mkdir o
try tar --xattrs --xattrs-include='*' -C o -xpf t.tar; diff -r --no-dereference s/ o/s
tar tf t.tar | sort
try tar --same-owner --overwrite -C o -xpf t.tar; try tar -C o --unlink-first -xf t.tar
try tar -C o -k -xf t.tar 2>/dev/null; echo new >s/d/n; tar -rf t.tar s/d/n
tar tf t.tar | tail -n 1; tar -czf t.tgz s; mkdir o2; try tar -C o2 -xzf t.tgz
echo newer >s/d/n; touch -d 2100-01-01 s/d/n
try tar -uf t.tar s/d/n; tar df t.tar; find o -newer s/a -name x; rm t.tar t.tgz
try tar --remove-files -cf r.tar o2/s/d; ls o2/s; rm r.tar
)sh"},
    {"zip_and_unzip", "zip unzip cmp", R"sh(
mkdir s; bytes 1 90000 >s/a; echo x >s/x; ln -s x s/l; touch -d @1000000000 s/a s/x
zip -qry z.zip s; mkdir o; (cd o; unzip -q ../z.zip); cmp s/a o/s/a
echo y >s/x; zip -qru z.zip s; zip -qd z.zip s/l; unzip -qo z.zip -d o2; unzip -tq z.zip
unzip -Z1 z.zip | sort; rm z.zip
)sh"},
    {"split_and_cat", "split cat cmp csplit", R"sh(
bytes 1 100000 >f; split -b 7777 f p.; cat p.* | cmp - f; split -n 3 f n.; cat n.* >g; cmp f g
csplit -s f 100 200; cat xx* | cmp - f; cat f g >both; try cat f >>f
cat <f >h; tee i j <f >/dev/null; cmp i j; paste -s -d, h | head -c 20; comm -12 f g | cmp - f
join f g | wc -l; head -c 10 f >>f; tail -c 10 f; wc -c <f
)sh"},
    {"dd_in_all_ways", "dd cmp", R"sh(
bytes 1 100000 >s
for conv in notrunc fsync fdatasync sparse sync,noerror nocreat excl swab lcase ucase block unblock
do
  bytes 2 120000 >f_$conv; try dd if=s of=f_$conv bs=3000 cbs=80 conv=$conv status=none
  try dd if=s of=new_$conv bs=3000 cbs=80 conv=$conv status=none; done
for flag in append direct dsync sync nonblock noatime nocache noctty nofollow nolinks \
    seek_bytes directory
do
  bytes 2 9000 >o_$flag
  try dd if=s of=o_$flag bs=4096 count=2 seek=1 oflag=$flag conv=notrunc status=none; done
for flag in append direct dsync sync nonblock noatime nocache noctty nofollow nolinks \
    skip_bytes count_bytes fullblock directory
do
  try dd if=s of=i_$flag bs=4096 count=2 skip=1 iflag=$flag status=none; done
ln -s s l; try dd if=l of=x iflag=nofollow status=none; try dd if=s of=. status=none
try dd if=s of=f bs=4096 oflag=direct iflag=direct status=none; cmp s f
try dd if=/dev/zero of=f bs=1 count=0 seek=1000000 status=none
try dd of=f bs=1 oflag=nocache conv=notrunc,fdatasync count=0 status=none
try dd if=s of=f bs=999 seek=3 skip=1 count=5 conv=notrunc status=none
)sh"},
    {"truncate_in_all_ways", "truncate", R"sh(
bytes 1 10000 >f; for size in 5000 +300 -100 '<4000' '>6000' /4096 %4096 0 8192
do truncate -s "$size" f; stat -c %s f; done; bytes 1 10000 >g; truncate -r g f
truncate -o -s 2 f; stat -c %s f; try truncate -c -s 5 none; try truncate -s 5 .; mkdir d
try truncate -s 5 d; truncate -s 5 new; ln -s g l; truncate -s 3 l
bytes 2 9000 >h; truncate -s 4097 h; truncate -s 9000 h; tail -c 4903 h | tr -d '\0' | wc -c
chmod 0 h; truncate -s 1 h; truncate -s 20G big; stat -c %s big; try truncate -s 8E big
try truncate -s -5 f
)sh"},
    {"fallocate_in_all_ways", "fallocate truncate", R"sh(
bytes 1 100000 >f; try fallocate -l 200000 f; stat -c %s f; try fallocate -n -o 300000 -l 100000 f
stat -c %s f; try fallocate -p -o 5000 -l 50000 f; try fallocate -z -o 60000 -l 20000 f
try fallocate -z -o 190000 -l 20000 f; stat -c %s f; try fallocate -z -n -o 200000 -l 50000 f
stat -c %s f; try fallocate -l 1M new; try fallocate -x -l 300000 posix; bytes 2 100 >>new
try fallocate -d f
truncate -s 1M holes; bytes 3 10 >>holes; try fallocate -d holes
try fallocate -p -o 1M -l 1M holes; stat -c %s holes; try fallocate -l 100 .
try fallocate -o -1 -l 5 f; try fallocate -l 0 f
try fallocate -l 100G huge; rm -f huge
)sh"},
    {"fallocate_that_moves_data_is_refused",
     "fallocate",
     R"sh(
bytes 1 40960 >f; tried fallocate -c -o 4096 -l 4096 f; tried fallocate -i -o 4096 -l 4096 f; rm f
)sh",
     {{"ok: fallocate", "Operation not supported: fallocate"}}},
    {"compressed_in_place", "gzip zstd xz bzip2", R"sh(
bytes 1 50000 >f; chmod 640 f; chown 3:4 f; touch -d @1000000000 f; gzip -n f; ls; gzip -d f.gz
zstd -q --rm f; ls; zstd -dq --rm f.zst; xz -T1 f; ls; xz -d f.xz
gzip -k -n f; zcat f.gz | cmp - f; try gzip f 2>/dev/null </dev/null; gzip -cdf f.gz >g; ls
)sh"},
    {"edited_in_place", "sed perl", R"sh(
seq 1000 >f; chmod 604 f; chown 3:4 f; sed -i s/1/one/ f; sed -i.bak 5d f; ln -s f l
sed -i --follow-symlinks 1d l; sed -i 2d l; perl -i.orig -pe 's/2/two/' f; sed -n -i p f
sed -i -s 1d f l; sed --in-place='b_*' 1d f; ls -A; printf 'no newline' >n; sed -i s/no/a/ n
try sed -i s/x/y/ .; try sed -i s/x/y/ missing; sed -n 'w out' f; printf '%s\n' 1d w q |
    ed -s f 2>/dev/null; sed -n '1p;$p' f
)sh"},
    {"sorted_onto_itself", "sort shuf uniq", R"sh(
bytes 5 30000 | sort -R --random-source=/bin/ls >f; sort -o f f; sort -c f; sort -r -o f f
sort -u -n -o f f f; sort -n -m f f | uniq -d | wc -l; sort -S 16k -T . f -r >g; ls -A; wc -l f g
tac f >h
)sh"},
    {"patched", "patch diff", R"sh(
mkdir a; seq 100 >a/f; echo gone >a/gone; cp -r a b; sed -i 's/^50$/fifty/' b/f; rm b/gone
echo new >b/new; diff -ruN a b >p; (cd a; try patch -sp1 <../p); diff -r a b; (cd a
try patch -sRp1 <../p); ls a
(cd a; try patch -sbp1 <../p; ls; try patch -sNp1 <../p >/dev/null; ls; sed -i s/fifty/other/ f
try patch -Rsfp1 <../p >/dev/null; ls); rm -f p; grep -c '' a/*.rej; rm -f a/*.rej
)sh"},
    {"logs_rotated_under_a_writer", "cp truncate", R"sh(
exec 3>>log; echo 1 >&3; cp -p log log.1; truncate -s 0 log; echo 2 >&3; mv log log.2; echo 3 >&3
: >log; exec 4>>log; echo 4 >&4; rm log; echo 5 >&4; echo new >log; exec 3>&- 4>&-; tail -n +1 log*
exec 5>plain; echo 12345 >&5; : >plain; echo 6 >&5; exec 5>&-; wc -c <plain; tr '\0' 0 <plain
)sh"},
    {"written_through_several_descriptors", "head stat truncate", R"sh(
printf %020d 0 >t; printf BB >t; wc -c <t; seq 3 >s; echo x >s; cat s; exec 3<>p
head -c 9000 /dev/zero >&3; truncate -s 100 p; stat -L -c %s /dev/fd/3; exec 3>&-; wc -c <p
: >r; exec 3<r; cat <&3; echo hello >r2; cat r2 >>r; cat <&3; exec 3<&-; for i in $(seq 50)
do echo x >e; rm e || echo BAD; : >u; rm u; done; ls
for i in $(seq 50); do cat k 2>/dev/null >/dev/null; echo $i >k || echo BAD; done; cat k
echo foo >w; echo bar >>w; cat w; exec 3>o 4<o 5>>o; echo 1 >&3; echo 2 >&5; echo 3 >&3; cat <&4
exec 3>&- 4<&- 5>&-
mkdir q; exec 3>q/f; rm q/f; rmdir q && echo ok; echo x >&3; exec 3>&-; bytes 7 300000 >big
cp big b; dd of=b oflag=nocache conv=notrunc,fdatasync count=0 status=none; cmp big b
)sh"},
};

class CopyingTools : public ComparedTools {};

TEST_P(CopyingTools, DoAsOnExt4) { compare(kCopies); }

// Each in its own way: O_TRUNC, ftruncate, a temporary file. Those that remove the old file first,
// such as install, lose it on every file system.
TEST_P(CopyingTools, KeepTheOldValueWhereTheNewOneDoesNotFit) {
  MountedStore small("24M", std::string("transport=") + GetParam());
  EXPECT_EQ(small.shell(R"sh(
export T; cd "$M"; seq 300000 >"$T/old"; seq 300000 -1 1 >"$T/new"; cp "$T/old" f; sync .
head -c 64M /dev/zero >filler 2>/dev/null; sync .
for tool in 'sort -rn -o f f' 'cp "$T/new" f' 'cat "$T/new" >f' 'sed -i s/1/2/ f' \
    'dd if="$T/new" of=f' 'rsync -I "$T/new" f' 'gzip -1 f' 'tac "$T/old" | tee f >"$T/out"'; do
  sh -c "$tool" >/dev/null 2>"$T/says" && echo "fits: $tool"
  grep -q 'No space left' "$T/says" || { echo "says: $tool"; cat "$T/says"; }
  cmp f "$T/old" || { echo "after: $tool"; break; }
done
rm -f filler; ls -A; sort -rn -o f f && cmp f "$T/new"
)sh"),
            "f\n");
  small.expect_sound();
}

INSTANTIATE_TEST_SUITE_P(OnBothTransports, CopyingTools, ::testing::Values("dev", "uring"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace kvslot::testing
