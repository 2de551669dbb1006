"""Saves a file in the three ways of editors: beside the old one, over a copy, and by replacing."""
from common import *


def save(name, how):
    probe = open_new("4913", os.O_WRONLY | os.O_EXCL | os.O_NOFOLLOW)
    os.fchown(probe, 3, 4)
    os.close(probe)
    os.unlink("4913")
    before = os.stat(name)
    if how == "rename":
        os.rename(name, name + "~")
        fd = open_new(name, os.O_WRONLY | os.O_EXCL)
    elif how == "copy":
        open(name + "~", "wb").write(open(name, "rb").read())
        fd = open_new(name, os.O_WRONLY | os.O_TRUNC)
    else:
        fd = open_new(".tmp", os.O_WRONLY | os.O_EXCL, 0o600)
    os.write(fd, b"saved " + how.encode() + b"\n" * 5000)
    os.fsync(fd)
    os.fchown(fd, before.st_uid, before.st_gid)
    os.fchmod(fd, before.st_mode & 0o7777)
    os.close(fd)
    if how == "replace":
        os.rename(".tmp", name)
        os.fsync(os.open(".", os.O_RDONLY))
    else:
        os.unlink(name + "~")
    is_same = before.st_ino == os.stat(name).st_ino
    print(how, is_same, open(name, "rb").read(10), os.listdir(".").count(name))


for how in ("rename", "copy", "replace"):
    open(how, "w").write("old\n")
    os.chown(how, 3, 4)
    os.chmod(how, 0o640)
    save(how, how)
    save(how, how)
number = os.stat("copy").st_ino
os.rename("copy", "copy2")
print(os.stat("copy2").st_ino == number)
