"""Every byte that is not zero lies in data, and data and holes take turns up to the end."""
from common import *

SIZE = 1000000


def all_data_is_found(fd, size):
    at, found = 0, []
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            assert error.errno == errno.ENXIO
            break
        at = os.lseek(fd, start, os.SEEK_HOLE)
        assert at > start
        found.append((start, at))
    assert at <= size
    content = os.pread(fd, size, 0)
    data = [i for i in range(size) if content[i]]
    return all(any(start <= i < end for start, end in found) for i in data)


def ends_of(fd, size):
    data, hole = os.SEEK_DATA, os.SEEK_HOLE
    where = ((size, data), (size, hole), (size - 1, hole), (-1, data), (size + 5, hole))
    return [said(os.lseek, fd, at, whence) for at, whence in where]


for name, is_synced in (("dirty", False), ("stored", True)):
    fd = open_new(name)
    os.ftruncate(fd, SIZE)
    for at in (0, 4095, 131071, 131072, 500000, SIZE - 1):
        os.pwrite(fd, b"x", at)
    if is_synced:
        os.fsync(fd)
    print(all_data_is_found(fd, SIZE), ends_of(fd, SIZE))
    print(fallocate(fd, 3, 400000, 200000), all_data_is_found(fd, SIZE))
    os.ftruncate(fd, 131072)
    print(all_data_is_found(fd, 131072), ends_of(fd, 131072))
empty = open_new("empty")
print(ends_of(empty, 0))
os.ftruncate(empty, 100000)
os.fsync(empty)
print(ends_of(empty, 100000), said(os.lseek, empty, 0, os.SEEK_DATA))
