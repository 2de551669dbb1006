"""Operations at random, on few names so that they meet; each says what came of it."""
from common import *

import random

NAMES = ["a", "b", "c", "d", "a/x", "a/y", "b/x", "b/y", "a/b", "a/b/c", "c/d"]
STEPS = 300


class Run:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.choice = self.random.choice
        self.below = self.random.randrange
        self.open_files = [open_new("other")]

    def some_file(self):
        return self.choice(self.open_files)

    # The operations: p and q are names.

    def put(self, p, q):
        flags = self.choice((0, os.O_TRUNC, os.O_APPEND))
        fd = open_new(p, os.O_RDWR | flags, self.choice((0o644, 0o600)))
        self.open_files.append(fd)
        data = bytes([65 + self.below(26)]) * self.choice((1, 10, 5000, 140000))
        return os.pwrite(fd, data, self.choice((0, 0, 7, 4096, 130000)))

    def mkdir(self, p, q):
        os.mkdir(p)

    def unlink(self, p, q):
        os.unlink(p)

    def rmdir(self, p, q):
        os.rmdir(p)

    def rename(self, p, q):
        return renameat2(p, q, self.choice((0, 0, 1, 2)))

    def symlink(self, p, q):
        os.symlink(q, p)

    def truncate(self, p, q):
        os.truncate(p, self.choice((0, 3, 5000, 200000)))

    def chmod(self, p, q):
        os.chmod(p, self.choice((0o755, 0o700, 0o4755)))

    def chown(self, p, q):
        os.chown(p, self.below(3), 0)

    def setxattr(self, p, q):
        os.setxattr(p, "user." + self.choice("abc"), b"v" * self.below(9))

    def removexattr(self, p, q):
        os.removexattr(p, "user." + self.choice("abc"))

    def utime(self, p, q):
        os.utime(p, (self.below(99), 7))

    def lstat(self, p, q):
        status = os.lstat(p)
        return (
            oct(status.st_mode),
            status.st_nlink,
            stat.S_ISDIR(status.st_mode) or status.st_size,
        )

    def read(self, p, q):
        with open(p, "rb") as file:
            return zlib.crc32(file.read())

    def listdir(self, p, q):
        return sorted(os.listdir(p))

    def close(self, p, q):
        if len(self.open_files) > 1:
            os.close(self.open_files.pop(self.below(len(self.open_files))))

    def fsync(self, p, q):
        os.fsync(self.some_file())

    def pwrite(self, p, q):
        return os.pwrite(self.some_file(), b"late", self.below(9999))

    def fstat(self, p, q):
        status = os.fstat(self.some_file())
        return status.st_size, status.st_nlink

    def ftruncate(self, p, q):
        os.ftruncate(self.some_file(), self.below(9000))

    def fallocate(self, p, q):  # reserve, keep size, punch, zero, zero and keep size
        mode = self.choice((0, 1, 3, 16, 17))
        return fallocate(self.some_file(), mode, self.below(9000), 1 + self.below(9000))

    def copy(self, p, q):
        source, target = self.some_file(), self.some_file()
        size = 1 + self.below(9000)
        return os.copy_file_range(source, target, size, self.below(5000), self.below(9000))


OPERATIONS = [
    name for name in vars(Run) if name not in ("__init__", "some_file") and name[0] != "_"
]

for seed in sys.argv[1:]:
    os.mkdir(seed)
    os.chdir(seed)
    run = Run(int(seed))
    for step in range(STEPS):
        p, q, operation = run.choice(NAMES), run.choice(NAMES), run.choice(OPERATIONS)
        print(seed, step, operation, p, q, said(getattr(run, operation), p, q))
    for fd in run.open_files:
        os.close(fd)
    os.chdir("..")
