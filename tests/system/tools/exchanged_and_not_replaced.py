"""Exchanges files, directories and links, open ones too, and renames that do not replace."""
from common import *


NOREPLACE, EXCHANGE = 1, 2

open("a", "w").write("a")
open("b", "w").write("b" * 100000)
os.mkdir("d")
open("d/x", "w").write("x")
os.symlink("a", "l")
fd = os.open("a", os.O_RDWR)
ia, ib = os.stat("a").st_ino, os.stat("b").st_ino
print(renameat2("a", "b", EXCHANGE), os.stat("b").st_ino == ia, os.stat("a").st_ino == ib)
os.write(fd, b"A")
print(open("b").read(), os.path.getsize("a"))
print(renameat2("a", "d", EXCHANGE), os.listdir("a"), os.path.getsize("d"))
print(renameat2("l", "b", EXCHANGE), os.readlink("b"), open("l").read())
print(
    renameat2("l", "b", NOREPLACE),
    renameat2("l", "new", NOREPLACE),
    renameat2("none", "new", EXCHANGE),
    renameat2("new", "none", EXCHANGE),
    renameat2("a", "a/y", EXCHANGE),
    renameat2("a/x", "a", EXCHANGE),
)
print(renameat2("a/x", "new", EXCHANGE), open("a/x").read(), open("new").read())
os.mkdir("p")
os.mkdir("q")
os.mkdir("p/k")
print(
    renameat2("p/k", "q", EXCHANGE),
    os.stat("p").st_nlink,
    os.stat("q").st_nlink,
    os.stat(".").st_nlink,
)
