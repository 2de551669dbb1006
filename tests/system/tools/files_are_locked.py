"""Locks by fcntl among processes, and a lease."""
from common import *

f = open("k", "w+")
f.write("0")
f.flush()
for i in range(4):
    if os.fork() == 0:
        g = open("k", "r+")
        for _ in range(25):
            fcntl.lockf(g, fcntl.LOCK_EX)
            g.seek(0)
            n = int(g.read())
            g.seek(0)
            g.write(str(n + 1))
            g.flush()
            fcntl.lockf(g, fcntl.LOCK_UN)
        os._exit(0)
for i in range(4):
    os.wait()
print(open("k").read())
g = open("k", "r+")
fcntl.lockf(g, fcntl.LOCK_EX, 10, 5)
if os.fork() == 0:
    h = open("k", "r+")
    print(
        said(fcntl.lockf, h, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 5),
        said(fcntl.lockf, h, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 15),
        said(fcntl.flock, h, fcntl.LOCK_EX | fcntl.LOCK_NB),
        flush=True,
    )
    os._exit(0)
os.wait()
print(said(fcntl.lockf, open("k"), fcntl.LOCK_EX))
l = open("lease", "w+")
l.close()
r = open("lease")
print(said(fcntl.fcntl, r, fcntl.F_SETLEASE, fcntl.F_RDLCK), said(fcntl.fcntl, r, fcntl.F_GETLEASE))
