"""The errno of every call on every kind of path, with and without a slash at the end. With the
argument `keep` on the tree that is there, which it leaves."""
from common import *

import shutil

LONG = "n" * 256
PATHS = """file file/ dir dir/ full full/ none none/ link link/ dirlink dirlink/ dangling dangling/
    loop file/x dir/x none/x . .. dir/. dir/.. full/. full/f""".split()
PATHS += ["", LONG, "dir/" + LONG, "file/" + LONG]
CREATE = os.O_CREAT | os.O_WRONLY
CALLS = {
    "stat": lambda p: os.stat(p).st_mode,
    "lstat": lambda p: os.lstat(p).st_mode,
    "open": lambda p: os.open(p, 0),
    "write": lambda p: os.open(p, os.O_WRONLY),
    "create": lambda p: os.open(p, CREATE, 0o644),
    "exclusive": lambda p: os.open(p, CREATE | os.O_EXCL, 0o644),
    "empty": lambda p: os.open(p, CREATE | os.O_TRUNC, 0o644),
    "create_directory": lambda p: os.open(p, CREATE | os.O_DIRECTORY),
    "open_directory": lambda p: os.open(p, os.O_DIRECTORY),
    "nofollow": lambda p: os.open(p, os.O_NOFOLLOW),
    "path": lambda p: os.open(p, os.O_PATH | os.O_NOFOLLOW),
    "truncate": lambda p: os.truncate(p, 3),
    "mkdir": os.mkdir,
    "rmdir": os.rmdir,
    "unlink": os.unlink,
    "symlink": lambda p: os.symlink("t", p),
    "readlink": os.readlink,
    "mknod": lambda p: os.mknod(p, 0o644 | stat.S_IFREG),
    "chmod": lambda p: os.chmod(p, 0o700),
    "lchown": lambda p: os.lchown(p, 1, 1),
    "utime": lambda p: os.utime(p, (1, 1)),
    "lutime": lambda p: os.utime(p, (1, 1), follow_symlinks=False),
    "access": lambda p: os.access(p, os.X_OK),
    "listdir": lambda p: sorted(os.listdir(p)),
    "statvfs": lambda p: os.statvfs(p).f_namemax,
    "getxattr": lambda p: os.getxattr(p, "user.q"),
    "setxattr": lambda p: os.setxattr(p, "user.q", b"1"),
    "lsetxattr": lambda p: os.setxattr(p, "user.q", b"1", follow_symlinks=False),
    "listxattr": os.listxattr,
    "chdir": os.chdir,
}
OPENS = list(CALLS)[2:11]


def make():
    shutil.rmtree("work", ignore_errors=True)
    os.makedirs("work/dir")
    os.makedirs("work/full/sub")
    for name in ("file", "full/f"):
        open("work/" + name, "w").write("x\n")
    for target, name in (("file", "link"), ("dir", "dirlink"), ("none", "dangling"), ("loop",) * 2):
        os.symlink(target, "work/" + name)


keeps = sys.argv[1:] == ["keep"]
here = os.getcwd()
for name, call in CALLS.items():
    did_something = True
    for path in PATHS:
        if did_something and not keeps:
            make()
        os.chdir("work")
        result = said(call, path)
        did_something = not str(result).startswith("E") and name not in (
            "stat",
            "lstat",
            "readlink",
        )
        if name in OPENS and isinstance(result, int):
            os.close(result)
            result = "opened"
        os.chdir(here)
        print(name, path.replace(LONG, "LONG") or "''", result)
if not keeps:
    shutil.rmtree("work")
