"""Attributes of users: set in each mode, too large, by a name that is none, on a removed file."""
from common import *

print(
    said(os.setxattr, "f", "user.c", b"1", os.XATTR_REPLACE),
    said(os.setxattr, "f", "user.c", b"1", os.XATTR_CREATE),
    said(os.setxattr, "f", "user.c", b"2", os.XATTR_CREATE),
    said(os.setxattr, "f", "user.c", b"3" * 2000, os.XATTR_REPLACE),
    len(os.getxattr("f", "user.c")),
    said(os.setxattr, "f", "user.big", b"x" * 65537),
    said(os.setxattr, "f", "bad.name", b"1"),
    said(os.setxattr, "f", "nodot", b"1"),
    said(os.setxattr, "f", "user.c", b"4", 3),
)
b = ctypes.create_string_buffer(10)
print(
    libc.getxattr(b"f", b"user.c", b, 10),
    errno.errorcode[ctypes.get_errno()],
    libc.listxattr(b"f", b, 3),
    errno.errorcode[ctypes.get_errno()],
    libc.getxattr(b"f", b"user.c", None, 0),
)
fd = os.open("f", 0)
os.setxattr(fd, "user.fd", b"y")
print(sorted(os.listxattr("f"))[:3])
os.removexattr(fd, "user.fd")
os.remove("f")
print(os.getxattr(fd, "user.empty"), said(os.setxattr, fd, "user.gone", b"1"))
