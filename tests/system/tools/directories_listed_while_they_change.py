"""What is there all the time is listed once, and places in a listing stay."""
from common import *

LASTING = 400

for i in range(LASTING):
    os.close(open_new("s%d" % i))
child = os.fork()
if child == 0:
    while True:
        for i in range(50):
            os.close(open_new("p%d" % i))
            os.rename("p%d" % i, "r%d" % i)
            os.unlink("r%d" % i)
for _ in range(40):
    names = os.listdir(".")
    assert sum(name[0] == "s" for name in names) == LASTING, names
    assert len(set(names)) == len(names), names
os.kill(child, 9)
os.waitpid(child, 0)
for name in os.listdir("."):
    if name[0] in "pr":
        os.unlink(name)


class Listing:
    """A directory, by the calls of the C library."""

    NAME_OFFSET = 19  # of d_name in struct dirent

    def __init__(self, path):
        libc.opendir.restype = libc.readdir.restype = ctypes.c_void_p
        libc.telldir.restype = ctypes.c_long
        self.stream = ctypes.c_void_p(libc.opendir(path))

    def next(self):
        entry = libc.readdir(self.stream)
        return ctypes.string_at(entry + self.NAME_OFFSET) if entry else None

    def rest(self):
        return list(iter(self.next, None))

    def rewind(self):
        libc.rewinddir(self.stream)

    def place(self):
        return ctypes.c_long(libc.telldir(self.stream))

    def go_to(self, place):
        libc.seekdir(self.stream, place)


listing = Listing(b".")
everything = listing.rest()
listing.rewind()
before = [listing.next() for _ in range(100)]
place = listing.place()
after = listing.rest()
listing.go_to(place)
print(before + after == everything, listing.rest() == after, len(everything))
os.unlink(before[50])
os.unlink(after[0])
listing.go_to(place)
print(listing.rest() in (after, after[1:]))
open("late", "w")
listing.rewind()
now = listing.rest()
print(b"late" in now, before[50] in now, len(now))
os.mkdir("gone")
open("gone/x", "w")
fd = os.open("gone", 0)
os.unlink("gone/x")
os.rmdir("gone")
print(
    said(os.listdir, fd), said(lambda: os.open("x", os.O_CREAT, dir_fd=fd)), os.fstat(fd).st_nlink
)
entries = list(os.scandir("."))
print(all(entry.inode() == os.lstat(entry).st_ino and entry.is_file() for entry in entries))
