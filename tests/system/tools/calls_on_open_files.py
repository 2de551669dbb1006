"""Calls on descriptors of each kind, copies among them, under signals and by several threads."""
from common import *

import signal
import threading


f = open_new("f", os.O_RDWR)
os.write(f, b"x" * 10)
os.fsync(f)
print(os.fstat(f).st_size)
os.write(f, b"y")
os.close(f)
a = open_new("a", os.O_RDWR | os.O_APPEND)
os.write(a, b"12345")
os.pwrite(a, b"67", 0)
print(os.pread(a, 10, 0), os.lseek(a, 0, os.SEEK_CUR))
fcntl.fcntl(a, fcntl.F_SETFL, 0)
print(os.pwrite(a, b"ZZ", 0), os.pread(a, 10, 0))
print(
    said(os.pwrite, a, b"x", 1 << 62),
    said(os.ftruncate, a, -1),
    said(os.ftruncate, a, 1 << 60),
    said(os.lseek, a, -1, 0),
    said(os.lseek, a, 1 << 40, 0),
    said(os.read, a, 10),
    said(os.pread, a, 5, 1 << 62),
)
r = os.open("f", os.O_RDONLY)
print(
    said(os.write, r, b"x"),
    said(os.ftruncate, r, 0),
    said(os.fsync, r),
    said(os.posix_fallocate, r, 0, 10),
)
w = os.open("f", os.O_WRONLY)
print(said(os.read, w, 1))
p = os.open("f", os.O_PATH)
print(said(os.read, p, 1), said(os.fchmod, p, 0), os.fstat(p).st_size, said(os.fsync, p))
d = os.open(".", os.O_RDONLY)
print(
    said(os.read, d, 1),
    said(os.fsync, d),
    said(os.fdatasync, d),
    said(os.ftruncate, d, 0),
    said(os.write, d, b"x"),
)
print(said(os.open, ".", os.O_WRONLY), said(os.open, ".", os.O_RDWR))
for flags in (
    os.O_DIRECTORY,
    os.O_DIRECTORY | os.O_CREAT,
    os.O_TRUNC,
    os.O_NOATIME,
    os.O_NOFOLLOW,
    os.O_EXCL,
    os.O_EXCL | os.O_CREAT,
    os.O_DIRECT,
    os.O_SYNC | os.O_RDWR,
    os.O_ASYNC,
    os.O_NONBLOCK,
):
    g = said(os.open, "f", flags)
    print(hex(flags), g if isinstance(g, str) else os.fstat(g).st_size)
print(said(os.open, "f", os.O_RDWR | os.O_TRUNC | os.O_APPEND) != "x", os.path.getsize("f"))
src = open_new("src", os.O_RDWR)
os.write(src, bytes(range(256)) * 400)
dst = open_new("dst", os.O_RDWR)
print(
    said(os.copy_file_range, src, dst, 5000, 100, 50),
    said(os.copy_file_range, src, dst, 1 << 40, 0, 90000),
    said(os.copy_file_range, src, dst, 10, 102400),
    said(os.copy_file_range, src, src, 100, 0, 50),
    said(os.copy_file_range, src, src, 100, 0, 5000),
    said(os.copy_file_range, r, w, 0),
    said(os.copy_file_range, w, dst, 5),
    said(os.copy_file_range, src, r, 5),
    said(os.copy_file_range, d, dst, 5),
    said(os.copy_file_range, src, open_new("a", os.O_RDWR | os.O_APPEND), 5, 0),
)
os.lseek(src, 0, 0)
print(os.sendfile(dst, src, 0, 1000), os.sendfile(dst, src, 100000, 100000))
x, y = os.pipe()
print(
    os.splice(src, y, 3000, offset_src=10),
    os.splice(x, dst, 3000, offset_dst=70000),
    os.fstat(dst).st_size,
)
print(
    os.posix_fadvise(src, 0, 0, os.POSIX_FADV_DONTNEED),
    os.pread(src, 3, 1000),
    said(os.fstatvfs, src).f_namemax,
    os.fpathconf(src, "PC_NAME_MAX"),
    os.fpathconf(src, "PC_LINK_MAX") > 0,
)
for name in ("RWF_DSYNC", "RWF_HIPRI", "RWF_APPEND"):
    if hasattr(os, name):
        print(name, said(os.pwritev, dst, [b"flag"], 10, getattr(os, name)))
nowait = said(os.preadv, dst, [bytearray(4)], 10, os.RWF_NOWAIT)
print("nowait", nowait in (4, "EAGAIN"))
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
s = open_new("sig", os.O_RDWR)
os.mkdir("many")
[os.close(open_new("many/%d" % i, os.O_RDWR)) for i in range(150)]
for i in range(150):
    os.write(s, b"%04d" % i * 500)
    os.fsync(s) if i % 10 == 0 else 0
    assert len(os.listdir("many")) == 150
    os.stat("many/%d" % i)
    os.rename("many/%d" % i, "many/x%d" % i)
signal.setitimer(signal.ITIMER_REAL, 0)
print(os.path.getsize("sig"), zlib.crc32(os.pread(s, 300000, 0)))


def churn(n):
    for i in range(60):
        g = open_new("t%d" % n, os.O_RDWR)
        os.write(g, b"x")
        os.utime(g, (1, 2))
        os.fchmod(g, 0o600)
        os.close(g)
        os.utime("t%d" % n, (3, 4))
        os.unlink("t%d" % n) if i % 2 else 0


ts = [threading.Thread(target=churn, args=(n,)) for n in range(4)]
[t.start() for t in ts]
[t.join() for t in ts]
print(os.listdir(".").count("t0"))
