"""Files in memory: shared, private, resized, cut off, removed, and where it is refused."""
from common import *

P = mmap.PAGESIZE
f = open("m", "w+b")
f.truncate(10 * P + 100)
m = mmap.mmap(f.fileno(), 0)
m[5 * P : 5 * P + 5] = b"hello"
m[-1:] = b"z"
m.flush()
print(len(m), m.find(b"hello"), open("m", "rb").read()[5 * P : 5 * P + 5])
m.resize(12 * P)
m[11 * P : 11 * P + 3] = b"end"
m.flush()
print(os.path.getsize("m"))
os.pwrite(f.fileno(), b"written", 100)
print(m[100:107])
m.close()
f.truncate(3 * P + 10)
print(os.path.getsize("m"), open("m", "rb").read(107)[100:])
m = mmap.mmap(f.fileno(), 4 * P)
m[3 * P + 10 : 3 * P + 20] = b"beyond end"
f.truncate(4 * P)
m.flush()
print(open("m", "rb").read()[3 * P : 3 * P + 30])
m.close()
p = mmap.mmap(f.fileno(), 0, flags=mmap.MAP_PRIVATE)
p[0:4] = b"mine"
print(open("m", "rb").read(4))
p.close()
r = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
print(said(r.madvise, mmap.MADV_DONTNEED))
os.unlink("m")
print(r[100:107])
r.close()
f.close()
print(said(lambda: mmap.mmap(os.open(".", os.O_RDONLY), P, prot=mmap.PROT_READ)))
w = os.open("w", os.O_WRONLY | os.O_CREAT)
os.ftruncate(w, P)
print(said(lambda: mmap.mmap(w, P)))
pid = os.fork()
if pid == 0:
    f = open("w", "r+b")
    m = mmap.mmap(f.fileno(), 4 * P) if os.ftruncate(f.fileno(), 4 * P) is None else 0
    f.truncate(P)
    m[2 * P]
    os._exit(0)
print(os.waitpid(pid, 0)[1])
e = open("e", "w+b")
print(said(lambda: mmap.mmap(e.fileno(), P, flags=mmap.MAP_SHARED)[0:0]))
e.write(b"q" * 10)
e.flush()
m = mmap.mmap(e.fileno(), 10)
m[0:1] = b"Q"
os.fsync(e.fileno())
print(open("e", "rb").read())
