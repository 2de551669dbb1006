"""A tree whose paths are longer than any call takes."""
from common import *

d = os.open(".", os.O_RDONLY)
n = "n" * 250
for i in range(20):
    os.mkdir(n, dir_fd=d)
    d = os.open(n, os.O_RDONLY, dir_fd=d)
os.close(os.open("leaf", os.O_CREAT, dir_fd=d))
print(
    said(os.stat, "/".join([n] * 20)),
    said(os.mkdir, "x/" * 2048 + "y"),
    said(os.open, "./" * 2040 + "new", os.O_CREAT) != "x",
)
