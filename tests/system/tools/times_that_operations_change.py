"""Which times of a file, its directory and another one each operation changes."""
from common import *


def tick(name):  # until the clock that stamps files has gone on
    os.close(os.open("probe", os.O_CREAT | os.O_WRONLY))
    start = os.stat(name).st_ctime_ns
    while True:
        os.chmod("probe", 0o600)
        if os.stat("probe").st_ctime_ns > start:
            return
        os.chmod("probe", 0o644)


def changed(what, watched, action):
    for n in watched:
        os.utime(n, (100, 100), follow_symlinks=False)
    tick(watched[-1])
    before = [os.lstat(n) for n in watched]
    said(action)
    print(
        what,
        [
            [
                k[3:]
                for k in ("st_atime_ns", "st_mtime_ns", "st_ctime_ns")
                if getattr(os.lstat(n), k) != getattr(b, k)
            ]
            for n, b in zip(watched, before)
            if os.path.lexists(n)
        ],
    )


os.makedirs("p/s")
os.makedirs("q")
open("p/f", "w").write("abc")
os.symlink("f", "p/l")
fd = os.open("p/f", os.O_RDWR)
W = ["p", "q", "p/f"]
for what, action in {
    "write": lambda: os.write(fd, b"x"),
    "write_none": lambda: os.write(fd, b""),
    "read": lambda: os.pread(fd, 5, 0),
    "truncate": lambda: os.truncate("p/f", 2),
    "truncate_same": lambda: os.truncate("p/f", 2),
    "ftruncate_same": lambda: os.ftruncate(fd, 2),
    "open_trunc": lambda: os.close(os.open("p/f", os.O_TRUNC | os.O_WRONLY)),
    "open_trunc_again": lambda: os.close(os.open("p/f", os.O_TRUNC | os.O_WRONLY)),
    "chmod": lambda: os.chmod("p/f", 0o600),
    "chmod_same": lambda: os.chmod("p/f", 0o600),
    "chown": lambda: os.chown("p/f", 1, 1),
    "chown_none": lambda: os.chown("p/f", -1, -1),
    "setxattr": lambda: os.setxattr("p/f", "user.a", b"1"),
    "removexattr": lambda: os.removexattr("p/f", "user.a"),
    "create": lambda: os.close(os.open("p/n", os.O_CREAT)),
    "unlink": lambda: os.unlink("p/n"),
    "mkdir": lambda: os.mkdir("p/d"),
    "rmdir": lambda: os.rmdir("p/d"),
    "symlink": lambda: os.symlink("x", "p/y"),
    "rename_dir": lambda: os.rename("p/s", "q/s"),
    "rename": lambda: os.rename("p/y", "p/z"),
    "listdir": lambda: os.listdir("p"),
    "failed_create": lambda: os.mkdir("p/f"),
    "fallocate": lambda: os.posix_fallocate(fd, 0, 10000),
    "fallocate_in": lambda: fallocate(fd, 1, 0, 10),
    "punch": lambda: fallocate(fd, 3, 0, 10),
    "copy": lambda: os.copy_file_range(fd, fd, 5, 0, 50),
    "fsync": lambda: os.fsync(fd),
    "utime_a": lambda: os.utime("p/f", ns=(5, 100 * 10**9)),
    "access": lambda: os.access("p/f", 4),
}.items():
    changed(what, W, action)
changed("rename_file", ["p", "q", "p/f"], lambda: os.rename("p/f", "p/g"))
changed("renamed", ["p", "q", "p/g"], lambda: os.rename("p/g", "q/g"))
changed("over", ["p", "q", "q/g"], lambda: os.rename("q/g", "p/z"))
changed("readlink", ["p", "q", "p/l"], lambda: os.readlink("p/l"))
changed("dir_moved", ["p", "q", "q/s"], lambda: os.rename("q/s", "p/s2"))
m = mmap.mmap(fd, 0)
changed("mapped", ["p", "q", "p/z"], lambda: (m.__setitem__(0, 65), m.flush()))
os.remove("probe")
