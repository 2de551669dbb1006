"""Every kind of path renamed to every other one, with every flag, and the tree that this leaves."""
from common import *

import shutil

LONG = "n" * 256
PATHS = """file file/ other dir empty empty/ full full/sub full/f full/sub/below/new none none/
    file/x link dangling dirlink . dir/..""".split()
PATHS += ["", LONG]
NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4
UNKNOWN = 8


def make():
    shutil.rmtree("../work", ignore_errors=True)
    os.makedirs("../work/full/sub/below")
    os.chdir("../work")
    os.mkdir("dir")
    os.mkdir("empty")
    for name in ("file", "other", "full/f", "dir/file"):
        open(name, "w").write(name)
    for target, name in (("file", "link"), ("dir", "dirlink"), ("none", "dangling")):
        os.symlink(target, name)


def tree():
    names = sorted(os.path.join(d, name) for d, ds, fs in os.walk(".") for name in ds + fs)
    return [
        (
            name,
            os.readlink(name)
            if os.path.islink(name)
            else os.path.isfile(name) and open(name).read(),
        )
        for name in names
    ]


os.mkdir("work")
os.chdir("work")
make()
start = tree()
for flags in (0, NOREPLACE, EXCHANGE):
    for source in PATHS:
        line = []
        for target in PATHS:
            result = renameat2(source, target, flags)
            now = start if result else tree()
            line.append(str(result) if now == start else "%x" % zlib.crc32(repr(now).encode()))
            if now != start:
                make()
        print(flags, source.replace(LONG, "LONG"), *line)
for flags in (NOREPLACE | EXCHANGE, EXCHANGE | WHITEOUT, UNKNOWN):
    print(flags, renameat2("file", "other", flags), renameat2("file", "new", flags))
print("whiteout", renameat2("file", "new", WHITEOUT))
os.chdir("..")
shutil.rmtree("work")
