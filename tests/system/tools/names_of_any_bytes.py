"""Every byte that a name may hold, and names that are too long."""
from common import *

for b in range(1, 256):
    if b != 47:
        open(bytes([b, 120]), "wb").write(bytes([b]))
    if b not in (46, 47):
        open(bytes([b]), "wb").close()
for n in (
    b"\xff\xfe",
    "飞".encode() * 85,
    b"-rf",
    b" ",
    b"a\nb",
    b"e\xcc\x81",
    b"\xc3\xa9",
    b"A",
    b"a",
    b"..a",
    b"...",
    b"x" * 255,
    b"\\",
    b"*",
):
    os.makedirs(n + b"d"[: max(0, 255 - len(n))] if len(n) < 255 else n, exist_ok=True)
print(len(os.listdir(b".")), sorted(os.listdir(b"."))[:5])
for n in (b"y" * 256, b"y" * 1000, b"y" * 4000):
    print(
        said(os.mkdir, n),
        said(os.open, n, os.O_CREAT),
        said(os.stat, n),
        said(os.rename, b"a", n),
        said(os.symlink, "x", n),
        said(os.unlink, n),
        said(os.rmdir, n),
        said(os.mknod, n),
        said(os.link, b"a", n),
    )
