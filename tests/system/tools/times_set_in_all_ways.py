"""Times that no tool sets."""
from common import *

for t in ((2**33) * 10**9, -(2**31) * 10**9, 123456789, -5):
    os.utime("n", ns=(t, t))
    s = os.stat("n")
    print(s.st_atime_ns, s.st_mtime_ns)
os.utime("n", ns=(5, 6))
print(os.stat("n").st_mtime_ns)
fd = os.open("n", os.O_RDONLY)
os.utime(fd, (11, 12))
print(os.fstat(fd).st_mtime, os.stat("n").st_atime)
