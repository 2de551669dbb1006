"""Python's own library on files: temporary ones, archives, databases, arrays."""
from common import *

import array
import pathlib
import pickle
import shelve
import shutil
import tempfile
import zipfile

os.makedirs("s/a/b")
pathlib.Path("s/a/f").write_bytes(b"x" * 70000)
os.symlink("f", "s/a/l")
shutil.copytree("s", "d", symlinks=True)
shutil.move("d", "e")
shutil.copy2("s/a/f", "g")
shutil.make_archive("arc", "gztar", "s")
shutil.unpack_archive("arc.tar.gz", "un")
os.remove("arc.tar.gz")
print(sorted((d, sorted(a), sorted(b)) for d, a, b in os.walk("e")))
print(shutil.disk_usage(".").total > 0)
with tempfile.TemporaryFile(dir=".") as f:
    f.write(b"abc")
    f.flush()
    f.seek(0)
    print(f.read(), os.fstat(f.fileno()).st_size)
with tempfile.NamedTemporaryFile(dir=".") as f:
    f.write(b"abc")
    f.flush()
    print(os.path.getsize(f.name))
with tempfile.SpooledTemporaryFile(max_size=10, dir=".") as f:
    f.write(b"x" * 1000)
    f.seek(0)
    print(len(f.read()))
with tempfile.TemporaryDirectory(dir=".") as d:
    pathlib.Path(d, "x").write_text("x")
with open("arr", "wb") as f:
    array.array("d", range(10000)).tofile(f)
    print(f.tell())
a = array.array("d")
a.fromfile(open("arr", "rb"), 10000)
print(sum(a))
fd = os.open("pre", os.O_RDWR | os.O_CREAT)
os.posix_fallocate(fd, 0, 100000)
print(os.fstat(fd).st_size)
os.pwritev(fd, [b"ab", b"cd"], 50000)
os.ftruncate(fd, 60000)
print(os.preadv(fd, [bytearray(10)], 59995))
os.fdatasync(fd)
os.fsync(fd)
print(os.fstat(fd).st_size)
os.write(fd, b"more")
os.close(fd)
with shelve.open("shelf", "n") as s:
    for i in range(50):
        s[str(i)] = list(range(i))
with shelve.open("shelf") as s:
    print(len(s), s["49"][-1])
for n in os.listdir("."):
    if n.startswith("shelf"):
        os.remove(n)
os.replace("g", "h")
pathlib.Path("h").rename("i")
print(pathlib.Path("i").stat().st_size)
with zipfile.ZipFile("z", "a") as z:
    z.writestr("x", "y" * 1000)
with zipfile.ZipFile("z", "a") as z:
    z.writestr("x2", "y" * 1000)
    print(z.testzip(), z.namelist())
os.remove("z")
pickle.dump({1: 2}, open("p", "wb"))
print(pickle.load(open("p", "rb")))
f = open("io", "w+b", buffering=0)
print(f.write(b"z" * 300000))
f.seek(1)
f.truncate()
print(f.read(), f.seek(0, 2))
f.close()
with open("r+", "w") as f:
    print(f.write("one\ntwo\n"))
with open("r+", "r+") as f:
    f.readline()
    f.seek(4)
    f.write("TWO")
    f.flush()
    print(os.fstat(f.fileno()).st_size)
with open("r+", "a+") as f:
    f.write("three\n")
    f.seek(0)
    print(f.read().split())
try:
    open("r+", "x")
except FileExistsError as e:
    print(e.errno)
