"""One file written and read in every way at random; after each step its bytes are said."""
from common import *

import random

SIZE_MAX = 600000
STEPS = 150
PAGE = mmap.PAGESIZE


class Run:
    def __init__(self, name, seed):
        self.name = name
        self.random = random.Random(seed)
        self.below = self.random.randrange
        self.fd = open_new(name)
        self.other = open_new(name + ".other")
        os.write(self.other, self.data(SIZE_MAX))
        self.direct = os.open(name, os.O_RDWR | os.O_DIRECT)
        self.appender = os.open(name, os.O_WRONLY | os.O_APPEND)

    def data(self, size):
        return self.random.randbytes(size)

    def some_size(self):
        return self.random.choice((1, 7, PAGE, 5000, 131072, self.below(1, 200000)))

    def size(self):
        return os.fstat(self.fd).st_size

    # The operations: at is an offset below SIZE_MAX, often one where something ends.

    def write(self, at):
        return os.pwrite(self.fd, self.data(self.some_size()), at)

    def append(self, at):
        if self.size() < SIZE_MAX:
            return os.write(self.appender, self.data(self.some_size()))

    def write_directly(self, at):
        buffer = mmap.mmap(-1, 8 * PAGE)
        buffer[:] = self.data(8 * PAGE)
        return os.pwritev(self.direct, [buffer], at // PAGE * PAGE)

    def read_directly(self, at):
        buffer = mmap.mmap(-1, 8 * PAGE)
        count = os.preadv(self.direct, [buffer], at // PAGE * PAGE)
        return count, zlib.crc32(buffer[:count])

    def write_mapped(self, at):
        if at < self.size():
            with mmap.mmap(self.fd, self.size()) as memory:
                data = self.data(self.some_size())[: len(memory) - at]
                memory[at : at + len(data)] = data
                if self.below(2):
                    memory.flush()

    def read_mapped(self, at):
        if at < self.size():
            with mmap.mmap(self.fd, self.size(), prot=mmap.PROT_READ) as memory:
                return zlib.crc32(memory[at : at + 10000])

    def truncate(self, at):
        os.ftruncate(self.fd, at)

    def truncate_by_name(self, at):
        os.truncate(self.name, at)

    def fallocate(self, at):
        mode = self.random.choice((0, 1, 3, 16, 17))
        return fallocate(self.fd, mode, at, self.some_size())

    def copy_from_other(self, at):
        return os.copy_file_range(self.other, self.fd, self.some_size(), self.below(SIZE_MAX), at)

    def copy_within(self, at):
        size = self.some_size()
        source = self.below(SIZE_MAX)
        if abs(source - at) >= size:
            return os.copy_file_range(self.fd, self.fd, size, source, at)

    def send(self, at):
        os.lseek(self.other, at, os.SEEK_SET)
        return os.sendfile(self.other, self.fd, self.below(SIZE_MAX), self.some_size())

    def fsync(self, at):
        os.fsync(self.fd)

    def forget_pages(self, at):
        os.fsync(self.fd)
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def reopen(self, at):
        os.close(self.fd)
        self.fd = os.open(self.name, os.O_RDWR)

    def rewrite(self, at):
        if self.below(4) == 0:
            os.close(os.open(self.name, os.O_WRONLY | os.O_TRUNC))

    def rename(self, at):
        os.rename(self.name, self.name + ".new")
        self.name += ".new"
        if len(self.name) > 100:
            os.rename(self.name, "short")
            self.name = "short"


HELPERS = ("data", "some_size", "size")
OPERATIONS = [name for name in vars(Run) if name[0] != "_" and name not in HELPERS]

for seed in sys.argv[1:]:
    os.mkdir("f" + seed)
    os.chdir("f" + seed)
    run = Run("file", int(seed))
    for step in range(STEPS):
        operation = run.random.choice(OPERATIONS)
        at = run.random.choice((0, PAGE, 131072, min(run.size(), SIZE_MAX), run.below(SIZE_MAX)))
        result = said(getattr(run, operation), at)
        content = zlib.crc32(os.pread(run.fd, 2 * SIZE_MAX, 0))
        print(seed, step, operation, at, result, run.size(), content)
    os.chdir("..")
