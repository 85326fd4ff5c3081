"""What keeps a submission's code away from everything else, on Linux: namespaces, a root of its own, limits, no rights.

Two steps. `enter` moves the calling process into mount, network and IPC namespaces whose root holds Python, NumPy,
Numba and labkit without the course, all read-only. `confine` then makes of a forked process one that owns nothing: its
own process IDs (killed as a whole), its own empty /tmp, no capabilities, and limits on everything that can run out.
"""

import contextlib
import ctypes
import os
import resource
import struct
from dataclasses import dataclass
from pathlib import Path

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
RDONLY, NOSUID, NODEV, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
DETACH = 2
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}  # system calls that libc has no function for
MOUNT_SETATTR = 442
FIRST_UID = 61_000_000  # beyond users and the ranges of containers
USERS = 100_000_000  # pairs of users from there on: two sandboxes hardly ever draw the same


@dataclass(frozen=True)
class Limits:
    """seconds: of CPU. memory: bytes beyond what the interpreter already takes. tmp: bytes in /tmp."""

    seconds: int = 120
    memory: int = 1 << 30
    processes: int = 16  # threads count
    files: int = 64
    tmp: int = 32 << 20


libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments) -> None:
    arguments = [ctypes.c_char_p(os.fsencode(a)) if isinstance(a, str | Path) else
                 ctypes.c_void_p(None) if a is None else ctypes.c_ulong(a) if isinstance(a, int) else a
                 for a in arguments]
    if getattr(libc, name)(*arguments) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"{name}: {os.strerror(errno)}")


def mount(source, target, kind=None, flags=0, options=None) -> None:
    _call("mount", source, target, kind, flags, options)


def _bind(source, target, *, read_only: bool = True) -> None:
    mount(source, target, None, BIND | REC)
    if not read_only:
        return
    try:  # the whole tree below it, too
        attributes = ctypes.create_string_buffer(struct.pack("<QQQQ", RDONLY | NOSUID | NODEV, 0, 0, 0))
        _call("syscall", MOUNT_SETATTR, -100 & 0xFFFFFFFFFFFFFFFF, str(target), 0x8000, attributes, 32)
    except OSError:
        flags = os.statvfs(target).f_flag & (NOSUID | NODEV | 8 | 1024 | 2048)  # those in force may be locked
        mount(None, target, None, REMOUNT | BIND | RDONLY | flags)


def enter(stage: str, shown: list[str], hidden: list[str], cache: str) -> bool:
    """Move this process into namespaces of its own with `stage` (an empty directory) as its root. OSError where the
    system refuses. shown: what stays visible, read-only. hidden: what does not, even below a shown one. cache: a
    directory to write to, seen as /cache. True if the user is one of a namespace of its own, too."""
    uid, gid = os.geteuid(), os.getegid()
    own_user = False
    try:
        _call("unshare", NEWNS | NEWNET | NEWIPC | NEWUTS)
    except OSError:
        _call("unshare", NEWUSER | NEWNS | NEWNET | NEWIPC | NEWUTS)
        own_user = True
        with contextlib.suppress(OSError):
            Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    mount(None, "/", None, REC | PRIVATE)
    mount("tmpfs", stage, "tmpfs", NOSUID | NODEV, "mode=755,size=8m")
    for link in ("/bin", "/sbin", "/lib", "/lib64", "/lib32"):
        if os.path.islink(link):
            os.symlink(os.readlink(link), stage + link)
        elif os.path.isdir(link):
            shown = [link, *shown]
    for path in sorted({os.path.realpath(path) for path in ("/usr", *shown) if os.path.exists(path)}):
        target = stage + path
        if os.path.isdir(path):
            os.makedirs(target, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if not os.path.exists(target):
                open(target, "x").close()
        _bind(path, target)
    for path in shown:  # as it is named, where that is a link to it
        if path != os.path.realpath(path) and not os.path.lexists(stage + path):
            with contextlib.suppress(OSError):
                os.makedirs(os.path.dirname(stage + path), exist_ok=True)
                os.symlink(os.path.realpath(path), stage + path)
    os.makedirs(stage + "/dev/shm")
    for device in ("null", "zero", "full", "random", "urandom"):
        open(f"{stage}/dev/{device}", "x").close()
        mount(f"/dev/{device}", f"{stage}/dev/{device}", None, BIND)
    for path in hidden:
        target = stage + os.path.realpath(path)
        if os.path.isdir(target):
            mount("tmpfs", target, "tmpfs", RDONLY | NOSUID | NODEV, "mode=000,size=4k")
        elif os.path.exists(target):
            mount("/dev/null", target, None, BIND)
    for index, path in enumerate(_below_tmp(shown)):  # private_mounts covers /tmp and shows these again
        os.makedirs(f"{stage}/shown/{index}")
        _bind(stage + path, f"{stage}/shown/{index}")
    for name in ("tmp", "cache"):
        os.makedirs(f"{stage}/{name}", exist_ok=True)
    _bind(cache, f"{stage}/cache", read_only=False)
    os.chdir(stage)
    _call("syscall", PIVOT_ROOT[os.uname().machine], ".", ".")
    _call("umount2", ".", DETACH)
    os.chdir("/")
    mount(None, "/", None, REMOUNT | BIND | RDONLY | NOSUID | NODEV)
    return own_user


def new_processes() -> None:
    """The next fork has process IDs of its own, mounts and network too; when it ends, all that it started is killed."""
    _call("unshare", NEWPID | NEWNS | NEWIPC | NEWNET)


def _below_tmp(shown: list[str]) -> list[str]:
    """The directories among `shown` that an empty /tmp would hide: a virtual environment may stand there."""
    real = sorted({os.path.realpath(path) for path in shown})
    return [path for path in real if path.startswith("/tmp/")]


def private_mounts(limits: Limits, shown: list[str], *, shared_cache: bool) -> None:
    """Mount a /tmp that holds only the paths `shown`; and a cache that others see only if shared_cache."""
    mount(None, "/", None, REC | PRIVATE)
    options = f"size={limits.tmp},nr_inodes=4096,mode=1777"
    mount("tmpfs", "/tmp", "tmpfs", NOSUID | NODEV, options)
    for index, path in enumerate(_below_tmp(shown)):
        os.makedirs(path, mode=0o755, exist_ok=True)
        _bind(f"/shown/{index}", path)
    mount("tmpfs", "/dev/shm", "tmpfs", NOSUID | NODEV, "size=1m,mode=1777")
    if shared_cache:
        return
    mount("tmpfs", "/dev/shm", "tmpfs", NOSUID | NODEV, options)  # below the overlay, and then covered again
    try:
        for name in ("upper", "work"):
            os.mkdir(f"/dev/shm/{name}", 0o777)
            os.chmod(f"/dev/shm/{name}", 0o777)
        mount("overlay", "/cache", "overlay", NOSUID | NODEV,
              "lowerdir=/cache,upperdir=/dev/shm/upper,workdir=/dev/shm/work")
    except OSError:
        mount("tmpfs", "/cache", "tmpfs", NOSUID | NODEV, options)
    mount("tmpfs", "/dev/shm", "tmpfs", NOSUID | NODEV, "size=1m,mode=1777")


def confine(limits: Limits, memory_used: int, uid: int | None) -> None:
    """Give up every right. memory_used: bytes of address space in use now. uid: the user to become, if root."""
    soft = {"AS": memory_used + limits.memory, "CPU": limits.seconds, "FSIZE": limits.tmp, "NOFILE": limits.files,
            "CORE": 0, "MSGQUEUE": 0, "MEMLOCK": 1 << 16, "STACK": 8 << 20}
    for name, value in soft.items():
        with contextlib.suppress(AttributeError, ValueError, OSError):
            which = getattr(resource, f"RLIMIT_{name}")
            hard = resource.getrlimit(which)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(which, (value, value))
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    with contextlib.suppress(AttributeError, ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NPROC, (limits.processes, limits.processes))
    if hasattr(libc, "prctl"):
        for capability in range(64):
            libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
        libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
        header, none = struct.pack("<Ii", 0x20080522, 0), bytes(24)
        libc.capset(header, none)
        libc.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
