"""What the programs of the tool cases share: `from common import *`."""
import ctypes
import errno
import fcntl
import mmap
import os
import stat
import sys
import zlib

libc = ctypes.CDLL(None, use_errno=True)


def said(call, *arguments):
    """What a call returns, or the name of its errno."""
    try:
        return call(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, error.errno)


def said_by_libc(result):
    """The same of a function of the C library."""
    return errno.errorcode[ctypes.get_errno()] if result < 0 else result


def renameat2(source, target, flags):
    return said_by_libc(libc.renameat2(-100, os.fsencode(source), -100, os.fsencode(target), flags))


def fallocate(fd, mode, offset, length):
    c_long = ctypes.c_long
    return said_by_libc(libc.fallocate(fd, mode, c_long(offset), c_long(length)))


def open_new(name, flags=os.O_RDWR, mode=0o644):
    return os.open(name, flags | os.O_CREAT, mode)
