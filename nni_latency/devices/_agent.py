# SPDX-License-Identifier: Apache-2.0
"""The agent: the program that is sent to a device and measures there. Standard library alone, Python 3.8 or later.

It is two processes of the same source. The supervisor owns a temporary folder and the line to the other machine; the
worker loads an adapter, which is a second file, and runs networks. A runtime that crashes, hangs or runs out of memory
takes the worker with it, which is one answer of the supervisor, and the worker is started again.

A frame is the length of a header in 8 bytes, the header in JSON, and the blobs whose sizes the header lists. The same
functions read and write frames on both machines.
"""

from __future__ import annotations

import collections
import ctypes
import errno
import glob
import hashlib
import json
import math
import os
import platform
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from typing import Any, Callable, Iterable

#: What an agent and its worker write first.
MAGIC = b"\x01nni_latency agent 1\x02\n"

#: Reads this source from standard input and runs it.
BOOTSTRAP = """\
import os, sys
sys.version_info >= (3, 8) or sys.exit("nni_latency needs Python 3.8 or later, and this is " + sys.version.split()[0])
def read(count):
    data = b""
    while len(data) < count:
        more = os.read(0, count - len(data))
        if not more:
            sys.exit("the source of the agent ended early")
        data += more
    return data
source = read(int.from_bytes(read(8), "big"))
exec(compile(source, "nni_latency_agent", "exec"), {"__name__": "nni_latency_agent", "SOURCE": source})
"""

#: Largest header and largest blob [byte]; what claims to be larger is not a frame.
LARGEST_HEADER, LARGEST_BLOB = 2**27, 2**33

#: Most that may be printed before the first frame [byte].
LONGEST_GREETING = 2**18

_LENGTH = struct.Struct(">Q")

#: How long a worker may take to start and to load its adapter at least [s].
_OPENING = 120.0

_PREFIX = "nni_latency.agent."

#: What is kept of what a worker prints [byte], and of its last line [characters].
_KEPT, _LONGEST_LINE = 2**12, 200

#: Age from which on a folder without a lock is one that an agent left behind [s].
_OLD = 3600.0

#: Memory that networks may take before the one that was not used for the longest time is let go, as a share.
_MEMORY_SHARE = 0.25

# Parameters of glibc's mallopt(3): freed memory is kept, as in the runtimes of this package.
_MALLOPT = {-3: 32 * 2**20, -1: 2**31 - 1, -4: 0}

#: Prints name, driver and memory [MiB] of the first GPU of NVIDIA.
GPU_PROGRAM = [
    "nvidia-smi",
    "-i",
    "0",
    "--query-gpu=name,driver_version,memory.total",
    "--format=csv,noheader,nounits",
]

#: Programs that print how warm a device is, where files do not have it: on Raspberry Pi and on Android.
HEAT_PROGRAMS = {"vcgencmd": ["vcgencmd", "get_throttled"], "dumpsys": ["dumpsys", "thermalservice"]}

#: Second-level cache where it is not known, and what is touched to empty it at most [byte].
_NEAR, _MOST_NEAR = 4 * 2**20, 16 * 2**20

#: Random numbers after which those of a hole repeat, few enough for zlib to find the repetition.
_PERIOD = 2048

#: Side of the matrices and numbers of the copy by which a device's speed is measured, and for how long each [s].
_SIDE, _COPIED, _LONG = 1024, 2**24, 0.3


class FrameError(Exception):
    """Raised when what arrives is not a frame."""


def pack(header: dict[str, Any], blobs: Iterable[bytes] = ()) -> bytes:
    """Write a frame."""
    blobs = list(blobs)
    text = json.dumps(dict(header, blobs=[len(blob) for blob in blobs])).encode()
    return b"".join([_LENGTH.pack(len(text)), text] + blobs)


class Frames:
    """Takes frames apart as their bytes arrive.

    Parameters
    ----------
    greeted : bool, default=False
        Whether everything up to `MAGIC` is skipped first, such as the greeting of a login shell.
    """

    def __init__(self, greeted: bool = False) -> None:
        #: What came before the first frame; None once that has begun.
        self.greeting: bytes | None = b"" if greeted else None
        self._data = bytearray()
        self._header: dict[str, Any] | None = None

    def feed(self, data: bytes) -> None:
        """Add bytes."""
        if self.greeting is None:
            self._data += data
            return
        before, magic, after = (self.greeting + data).partition(MAGIC)
        self.greeting = None if magic else before
        self._data += after
        if not magic and len(before) > LONGEST_GREETING:
            raise FrameError("what was printed begins with %r" % before[:40].decode(errors="replace").split("\n")[0])

    def next(self) -> tuple[dict[str, Any], list[bytes]] | None:
        """Return the next header with its blobs; None where a part of it is missing."""
        if self._header is None:
            if len(self._data) < _LENGTH.size:
                return None
            (length,) = _LENGTH.unpack_from(self._data)
            if length > LARGEST_HEADER:
                raise FrameError(f"a header of {length} bytes was announced")
            if len(self._data) < _LENGTH.size + length:
                return None
            self._header = _header(bytes(self._data[_LENGTH.size : _LENGTH.size + length]))
            del self._data[: _LENGTH.size + length]
        sizes = self._header["blobs"]
        if len(self._data) < sum(sizes):
            return None
        blobs, at = [], 0
        for size in sizes:
            blobs.append(bytes(self._data[at : at + size]))
            at += size
        del self._data[:at]
        header, self._header = self._header, None
        return header, blobs


def _header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
        sizes = header["blobs"]
        good = all(type(size) is int and 0 <= size <= LARGEST_BLOB for size in sizes)
    except (ValueError, TypeError, KeyError) as error:
        raise FrameError("what arrived is not a header") from error
    if not good:
        raise FrameError("a blob of an impossible size was announced")
    found: dict[str, Any] = header
    return found


def name_of(content: bytes) -> str:
    """Return the name of a content, which is its SHA-256."""
    return hashlib.sha256(content).hexdigest()


def shrink(data: bytes, holes: Iterable[tuple[int, int, int, float]] = ()) -> bytes:
    """Return a content: data in which the holes are not sent.

    A hole is (offset, length, seed, scale): there the device puts normally distributed numbers of 32 bits, drawn with
    the seed and multiplied by the scale. They repeat after `_PERIOD`: drawing millions takes as long as running them.
    """
    holes = list(holes)
    kept, at = [], 0
    for offset, length, _, _ in holes:
        kept.append(data[at:offset])
        at = offset + length
    kept.append(data[at:])
    head = zlib.compress(json.dumps({"size": len(data), "holes": holes}).encode())
    return _LENGTH.pack(len(head)) + head + zlib.compress(b"".join(kept))


def expand(content: bytes) -> bytes:
    """Return the data of a content, with numbers in its holes."""
    (length,) = _LENGTH.unpack_from(content)
    head = json.loads(zlib.decompress(content[_LENGTH.size : _LENGTH.size + length]))
    kept = zlib.decompress(content[_LENGTH.size + length :])
    if not head["holes"]:
        return kept
    import numpy

    data, at, taken = bytearray(head["size"]), 0, 0
    for offset, size, seed, scale in head["holes"]:
        data[at:offset] = kept[taken : taken + offset - at]
        taken += offset - at
        period = numpy.random.default_rng(seed).standard_normal(_PERIOD, dtype=numpy.float32) * numpy.float32(scale)
        data[offset : offset + size] = numpy.resize(period, size // 4).tobytes()
        at = offset + size
    data[at:] = kept[taken:]
    return bytes(data)


# What a device is, and what it is like at this moment.


def text(path: str) -> str:
    """Read a file of the kernel; empty where it cannot be read."""
    try:
        with open(path, errors="replace") as file:
            return file.read().replace("\0", "").strip()
    except OSError:
        return ""


def usable() -> list[int]:
    """Return the numbers of the processors that this process may use."""
    try:
        return sorted(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return list(range(os.cpu_count() or 1))


def written(numbers: list[int]) -> str:
    """Write numbers of processors as a list of ranges."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join("%d-%d" % (run[0], run[-1]) if len(run) > 2 else ",".join(map(str, run)) for run in runs)


def facts(root: str = "/") -> dict[str, Any]:
    """Read what the device is, under the names of `nni_latency.platforms.FACTS`; what cannot be read is left out."""
    info: dict[str, str] = {}
    for line in text(root + "proc/cpuinfo").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            info.setdefault(name.strip(), value.strip())
    found: dict[str, Any] = {
        "device_name": _device_name(root, info),
        "device_kind": "cpu",
        "system": platform.system() + " " + platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "cpu_count": len(usable()),
        "cpu_affinity": written(usable()),
    }
    names = (
        ("cpu family", "model", "stepping") if "cpu family" in info else ("CPU implementer", "CPU part", "CPU revision")
    )
    signature = [info.get(name, "") for name in names]
    if all(signature):
        found["cpu_signature"] = "-".join(signature)
    if "flags" in info:
        found["virtualised"] = "hypervisor" in info["flags"].split()
    sizes = [size for _, size in caches(root)]
    if any(sizes):
        found["cache"] = max(sizes)
    scaling = root + "sys/devices/system/cpu/cpu0/cpufreq/"
    if text(scaling + "scaling_governor"):
        found["cpu_governor"] = text(scaling + "scaling_governor")
    if text(scaling + "cpuinfo_max_freq").isdigit():
        found["cpu_frequency_max"] = int(text(scaling + "cpuinfo_max_freq")) * 1000
    memory = re.search(r"^MemTotal:\s*(\d+) kB", text(root + "proc/meminfo"), re.M)
    if memory:
        found["memory"] = int(memory.group(1)) * 1024
    load = re.match(r"[\d.]+", text(root + "proc/loadavg"))
    if load:
        found["load"] = float(load.group())
    return dict(found, **gpu(root))


def gpu(root: str = "/", printed: str | None = None) -> dict[str, Any]:
    """Read what GPU the device has; empty where it shows none.

    Parameters
    ----------
    root : str, default="/"
        The folder that holds ``etc``, ``proc`` and ``sys``, with a slash behind it.
    printed : str, optional
        What the program `GPU_PROGRAM` prints; it is run by default.
    """
    if printed is None:
        printed = output(GPU_PROGRAM) if root == "/" else ""
    described = re.match(r"(.+), *([\d.]+), *([^,\n]+)", printed)
    if described:
        name, driver, mebibytes = (part.strip() for part in described.groups())
        known = {"gpu_memory": int(mebibytes) * 2**20} if mebibytes.isdigit() else {}
        return {"gpu_name": name, "gpu_driver": driver, **known}
    # Jetson, whose GPU has no name but that of the board; then Adreno, then Mali with the number of its cores.
    release = re.search(r"R(\d+) \(release\), REVISION: ([\d.]+)", text(root + "etc/nv_tegra_release"))
    if release:
        name = text(root + "proc/device-tree/model") or "NVIDIA Tegra"
        return {"gpu_name": name, "gpu_driver": "L4T %s.%s" % release.groups()}
    name = text(root + "sys/class/kgsl/kgsl-3d0/gpu_model") or text(root + "sys/class/misc/mali0/device/gpuinfo")
    return {"gpu_name": re.sub(r" 0x\w+$", "", name)} if name else {}


def _device_name(root: str, info: dict[str, str]) -> str:
    """Return the name of the board or phone; of a computer, that of its processor."""
    if "model name" in info and "flags" in info:
        return info["model name"]
    board = text(root + "proc/device-tree/model") or info.get("Model", "")
    if not board and root == "/":
        board = output(["getprop", "ro.product.model"])
    return board or info.get("Hardware") or info.get("model name") or platform.processor() or platform.machine()


def caches(root: str = "/") -> list[tuple[str, int]]:
    """Return level and size [byte] of every cache of the first processor."""
    units = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
    found = []
    for path in glob.glob(root + "sys/devices/system/cpu/cpu0/cache/index*"):
        size = re.match(r"(\d+)([KMG]?)$", text(path + "/size"))
        if size:
            found.append((text(path + "/level"), int(size.group(1)) * units[size.group(2)]))
    return found


def conditions(
    root: str = "/", processors: Iterable[int] | None = None, printed: dict[str, str] | None = None
) -> dict[str, Any]:
    """Read what the device is like, under the names of `nni_latency.platforms.Conditions`; see `heat` for `printed`."""
    processors = usable() if processors is None else list(processors)
    found: dict[str, Any] = {"taken": time.perf_counter(), "processors": len(processors)}
    load = re.match(r"[\d.]+", text(root + "proc/loadavg"))
    if load:
        found["load"] = float(load.group())
    rows = {
        int(number): [int(count) for count in counts.split()]
        for number, counts in re.findall(r"^cpu(\d+) ([\d ]+)$", text(root + "proc/stat"), re.M)
    }
    if rows:
        tick = 1 / os.sysconf("SC_CLK_TCK")
        mine = [rows[number] for number in processors if len(rows.get(number, ())) > 7]
        found["processors_online"] = len(rows)
        found["busy"] = sum(row[column] for row in mine for column in (0, 1, 2, 5, 6)) * tick
        found["steal"] = sum(row[7] for row in mine) * tick
    scaling = [root + "sys/devices/system/cpu/cpu%d/cpufreq/" % number for number in processors]
    clocks = [float(value) * 1e3 for value in (text(path + "scaling_cur_freq") for path in scaling) if value.isdigit()]
    if clocks:
        found["cpu_frequency"], found["cpu_frequency_top"] = sum(clocks) / len(clocks), max(clocks)
    governors = sorted({text(path + "scaling_governor") for path in scaling} - {""})
    if governors:
        found["cpu_governor"] = ", ".join(governors)
    flags = re.search(r"^flags\s*:(.*)$", text(root + "proc/cpuinfo"), re.M)
    if flags:
        found["virtualised"] = "hypervisor" in flags.group(1).split()
    memory = re.search(r"^MemAvailable:\s*(\d+) kB", text(root + "proc/meminfo"), re.M)
    if memory:
        found["memory_available"] = int(memory.group(1)) * 1024
    pages = re.search(r"^pswpin (\d+)$", text(root + "proc/vmstat"), re.M)
    if pages:
        found["swap_in"] = int(pages.group(1)) * os.sysconf("SC_PAGE_SIZE")
    found.update(heat(root, printed))
    # This decides what is waited for, and is not kept.
    found.pop("cpu_hot", None)
    return found


def heat(root: str = "/", printed: dict[str, str] | None = None) -> dict[str, Any]:
    """Read the temperature of the warmest zone [C], and whether the processors are slowed down.

    They may be so because of heat or of a weak supply (`cpu_slowed`), or because of heat (`cpu_hot`). A device that
    shows neither has neither.

    Parameters
    ----------
    root : str, default="/"
        The folder that holds ``sys``, with a slash behind it.
    printed : dict of str to str, optional
        What the programs `HEAT_PROGRAMS` print; they are run by default.
    """
    if printed is None:
        printed = {name: output(HEAT_PROGRAMS[name]) for name in HEAT_PROGRAMS} if root == "/" else {}
    found: dict[str, Any] = {}
    degrees = [text(path) for path in glob.glob(root + "sys/class/thermal/thermal_zone*/temp")]
    service = printed.get("dumpsys", "").partition("Current temperatures from HAL:")
    known = [float(value) / 1000 for value in degrees if re.match(r"-?\d+$", value)]
    known += map(float, re.findall(r"Temperature\{mValue=(-?[\d.]+), mType=0,", service[2]))
    known = [value for value in known if -50 < value < 150]
    if known:
        found["cpu_temperature"] = max(known)
    signs = [
        int(text(path + "/cur_state"))
        for path in glob.glob(root + "sys/class/thermal/cooling_device*")
        if re.search("cpu|processor", text(path + "/type"), re.I) and text(path + "/cur_state").isdigit()
    ]
    # Android: 0 is no throttling, and coolers of the type 2 are those of processors.
    signs += map(int, re.findall(r"^\s*Thermal Status: (\d+)", service[0], re.M))
    signs += map(int, re.findall(r"CoolingDevice\{mValue=(\d+), mType=2,", service[2]))
    firmware = text(root + "sys/devices/platform/soc/soc:firmware/get_throttled") or printed.get("vcgencmd", "")
    bits = re.match(r"(?:throttled=)?(?:0x)?([0-9a-f]+)$", firmware.strip())
    weak = False
    if bits:
        # Raspberry Pi: the supply is weak, the frequency is capped, it is slowed down, it is warm; the rest is past.
        value = int(bits.group(1), 16) & 0xF
        weak = bool(value & 1)
        signs.append(value & 8 if weak else value)
    if signs:
        found["cpu_hot"] = any(signs)
        found["cpu_slowed"] = found["cpu_hot"] or weak
    return found


def output(command: list[str]) -> str:
    """Return what a program prints; nothing where it is absent or fails."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace").strip()


# The supervisor.


class Supervisor:
    """Answers the other machine until its line ends, by a worker that it starts again when it dies.

    Parameters
    ----------
    source : bytes
        This file.
    line_in, line_out : int
        Descriptors of the line.
    """

    def __init__(self, source: bytes, line_in: int, line_out: int) -> None:
        self.source, self.line_in, self.line_out = source, line_in, line_out
        self.folder, self.lock = _make_folder()
        self.janitor = _start_janitor(self.folder)
        self.worker: subprocess.Popen[bytes] | None = None
        #: The end of what the worker has printed since it began what it does.
        self.printed = b""
        self.frames, self.from_worker = Frames(), Frames()
        self.queue: collections.deque[tuple[dict[str, Any], list[bytes]]] = collections.deque()
        self.opening: tuple[dict[str, Any], list[bytes]] | None = None
        self.is_opened = False
        self.job: dict[str, Any] | None = None
        self.device_lock: int | None = None
        #: Names of contents that the worker has not let go of yet.
        self.released: list[str] = []

    def serve(self) -> None:
        """Answer until the line ends."""
        _write(self.line_out, MAGIC)
        while True:
            lines = [self.line_in]
            if self.job is not None and self.worker is not None and self.worker.stdout is not None:
                lines.append(self.worker.stdout.fileno())
            printing = self._printing()
            left = max(0.0, self.job["until"] - time.monotonic()) if self.job is not None else None
            ready = select.select(lines + printing, [], [], left)[0]
            if printing and printing[0] in ready:
                self._keep_printed()
            if self.line_in in ready:
                data = os.read(self.line_in, 2**20)
                if not data:
                    return
                self.frames.feed(data)
                self._take()
            if self.job is not None and len(lines) > 1 and lines[1] in ready:
                self._hear(lines[1])
            elif self.job is not None and time.monotonic() > self.job["until"]:
                seconds = self.job["timeout"]
                self.end_worker()
                self._finish({"kind": "failed", "error": "it did not end within %g s" % seconds})
            while self.job is None and self.queue:
                if not self._handle(*self.queue.popleft()):
                    return

    def _take(self) -> None:
        while True:
            frame = self.frames.next()
            if frame is None:
                return
            for name in frame[0].get("release", ()):
                _remove(self._path(name))
                self.released.append(name)
            if frame[0].get("do") == "stop":
                given_up = frame[0]["request"]
                self.queue = collections.deque(item for item in self.queue if item[0]["id"] != given_up)
                if self.job is not None and self.job["id"] == given_up:
                    self.job["rest"].clear()
            else:
                self.queue.append(frame)

    def _handle(self, header: dict[str, Any], blobs: list[bytes]) -> bool:
        """Answer what needs no worker, and hand the rest to it; False at the end."""
        what, number = header["do"], header["id"]
        try:
            if what == "end":
                self._answer({"id": number, "kind": "ok"})
                return False
            if what in ("hello", "conditions", "heat", "put", "renew", "lock"):
                self._answer(dict(getattr(self, "_" + what)(header, blobs), id=number, kind="ok"))
                return True
            if what == "open":
                self.end_worker()
                self.opening = header, blobs
                self._begin(number, [], header["timeout"])
                return True
            rest = header["visits"] if what == "visits" else [header]
            self._begin(number, list(rest), header["timeout"])
        except OSError as error:
            self._answer({"id": number, "kind": _kind_of(error), "error": str(error), "folder": self.folder})
        return True

    def _begin(self, number: int, rest: list[dict[str, Any]], timeout: float) -> None:
        self.job = {"id": number, "rest": collections.deque(rest), "timeout": timeout, "until": 0.0}
        self._next()

    def _next(self) -> None:
        """Give the worker its next piece of work; it is started first where there is none."""
        assert self.job is not None
        # A runtime may take long to load, however short a network is.
        longest = self.job["timeout"] if self.is_opened else max(self.job["timeout"], _OPENING)
        self.job["until"] = time.monotonic() + longest
        if self.worker is None:
            self._start_worker()
        if not self.is_opened:
            if self.opening is None:
                self._finish({"kind": "error", "error": "no adapter was sent"})
                return
            self._tell(*self.opening)
            return
        piece = self.job["rest"].popleft()
        lacking = [name for name in piece.get("needs", ()) if not os.path.exists(self._path(name))]
        if lacking:
            self._finish({"kind": "lacking", "names": lacking})
            return
        self._tell(dict(piece, release=self.released), [])
        self.released = []

    def _printing(self) -> list[int]:
        """Return the descriptor of what the worker prints, if there is one."""
        if self.worker is None or self.worker.stderr is None or self.worker.stderr.closed:
            return []
        return [self.worker.stderr.fileno()]

    def _keep_printed(self) -> bool:
        """Read what the worker has printed and keep its end; whether there may be more."""
        assert self.worker is not None and self.worker.stderr is not None
        try:
            data = os.read(self.worker.stderr.fileno(), 2**16)
        except BlockingIOError:
            return False
        if not data:
            self.worker.stderr.close()
        self.printed = (self.printed + data)[-_KEPT:]
        return bool(data)

    def _tell(self, header: dict[str, Any], blobs: list[bytes]) -> None:
        assert self.worker is not None and self.worker.stdin is not None
        self.printed = b""
        try:
            _write(self.worker.stdin.fileno(), pack(header, blobs))
        except OSError:
            self._died()

    def _hear(self, line: int) -> None:
        data = os.read(line, 2**20)
        if not data:
            self._died()
            return
        try:
            self.from_worker.feed(data)
            frame = self.from_worker.next()
        except FrameError:
            self.end_worker()
            self._finish({"kind": "failed", "error": "its process answered something else than a frame"})
            return
        if frame is None or self.job is None:
            return
        header, blobs = frame
        if not self.is_opened:
            self.is_opened = header["kind"] == "ok"
            if self.is_opened and self.job["rest"]:
                self._next()
                return
            if not self.is_opened:
                self.end_worker()
            self._finish(header, blobs)
            return
        if self.job["rest"] and header["kind"] == "ok":
            self._answer(dict(header, id=self.job["id"], more=True), blobs)
            self._next()
            return
        self._finish(header, blobs)

    def _died(self) -> None:
        reason = self.end_worker()
        self._finish({"kind": "died", "error": reason})

    def _finish(self, header: dict[str, Any], blobs: Iterable[bytes] = ()) -> None:
        assert self.job is not None
        number, self.job = self.job["id"], None
        self._answer(dict(header, id=number), blobs)

    def _answer(self, header: dict[str, Any], blobs: Iterable[bytes] = ()) -> None:
        _write(self.line_out, pack(header, blobs))

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, "content." + name)

    def _hello(self, header: dict[str, Any], blobs: list[bytes]) -> dict[str, Any]:
        return {"facts": facts()}

    def _conditions(self, header: dict[str, Any], blobs: list[bytes]) -> dict[str, Any]:
        return {"conditions": dict(conditions(), own_time=self._own_time())}

    def _heat(self, header: dict[str, Any], blobs: list[bytes]) -> dict[str, Any]:
        return {"heat": heat()}

    def _own_time(self) -> float:
        """Return the time that processors have worked for this process and its workers [s]."""
        spent = sum(os.times()[:4])
        if self.worker is not None:
            # The name of the program stands in brackets before the numbers.
            ticks = text("/proc/%d/stat" % self.worker.pid).rpartition(")")[2].split()[11:13]
            spent += sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        return spent

    def _put(self, header: dict[str, Any], blobs: list[bytes]) -> dict[str, Any]:
        for blob in blobs:
            path = self._path(name_of(blob))
            try:
                with open(path + ".part", "wb") as file:
                    file.write(blob)
                os.rename(path + ".part", path)
            except OSError:
                _remove(path + ".part")
                raise
        return {}

    def _renew(self, header: dict[str, Any], blobs: list[bytes]) -> dict[str, Any]:
        self.end_worker()
        return {}

    def _lock(self, header: dict[str, Any], blobs: list[bytes]) -> dict[str, Any]:
        """Give back the lock by which one process measures at a time; take it on the first folder that can be opened.

        Without folders it is only given back. Nothing is written, so nothing is left behind.
        """
        import fcntl

        if self.device_lock is not None:
            os.close(self.device_lock)
            self.device_lock = None
        for folder in header["folders"]:
            try:
                lock = os.open(folder, os.O_RDONLY)
            except OSError:
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(lock)
                if isinstance(error, BlockingIOError):
                    return {"taken": False}
                continue
            self.device_lock = lock
            break
        return {"taken": True}

    def _start_worker(self) -> None:
        self.worker = subprocess.Popen(
            # As this process was started: it may be emulated, or begun by a script.
            [sys.argv[1], "-u", "-c", BOOTSTRAP, "", self.folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=self.folder,
            env=dict(os.environ, TMPDIR=self.folder),
        )
        assert self.worker.stderr is not None
        os.set_blocking(self.worker.stderr.fileno(), False)
        self.from_worker, self.is_opened, self.printed = Frames(greeted=True), False, b""
        self._announce(self.worker.pid)
        assert self.worker.stdin is not None
        try:
            _write(self.worker.stdin.fileno(), _LENGTH.pack(len(self.source)) + self.source)
        except OSError:
            self._died()

    def end_worker(self) -> str:
        """Kill the worker; return how it ended where it was dead already, and the last line that it printed."""
        worker, self.is_opened = self.worker, False
        if worker is None:
            return "its process ended"
        if worker.stdout is not None and worker.stdin is not None:
            worker.stdin.close()
            worker.stdout.close()
        try:
            # A process whose line broke is about to end.
            code = worker.wait(5.0 if self.job is not None and time.monotonic() < self.job["until"] else 0.0)
        except subprocess.TimeoutExpired:
            worker.kill()
            code = worker.wait()
        while self._printing() and self._keep_printed():
            pass
        if worker.stderr is not None:
            worker.stderr.close()
        self.worker = None
        self._announce(0)
        lines = self.printed.decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return _ending(code) + ("; the last line that it printed is %r" % last[:_LONGEST_LINE] if last else "")

    def _announce(self, process: int) -> None:
        """Write to the janitor which process it must kill."""
        if self.janitor is not None and self.janitor.stdin is not None:
            try:
                _write(self.janitor.stdin.fileno(), b"%d\n" % process)
            except OSError:
                pass

    def close(self) -> None:
        """End the worker and remove the folder."""
        self.job = None
        if self.worker is not None:
            self.worker.kill()
        self.end_worker()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.janitor is not None and self.janitor.stdin is not None:
            self.janitor.stdin.close()
            self.janitor.wait()


def _ending(code: int) -> str:
    """Say how a process ended."""
    if code == -signal.SIGKILL:
        return "its process was killed, most likely because the memory ran out"
    if code < 0:
        return "its process crashed (%s)" % signal.Signals(-code).name
    return "its process ended with code %d" % code


def _kind_of(error: OSError) -> str:
    return "full" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "error"


def _remove(path: str) -> None:
    try:
        os.remove(path)
    except OSError:
        pass


def _write(line: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(line, view) :]


def _make_folder() -> tuple[str, Any]:
    """Make the temporary folder, and remove those of agents that are gone, such as after a power cut.

    An agent holds a lock on a file in its folder for as long as it lives.
    """
    import fcntl

    base = tempfile.gettempdir()
    for path in glob.glob(os.path.join(base, _PREFIX + "*")):
        try:
            if os.stat(path).st_uid != os.getuid():
                continue
            with open(os.path.join(path, "lock"), "r+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        except FileNotFoundError:
            try:
                if time.time() - os.stat(path).st_mtime > _OLD:
                    shutil.rmtree(path, ignore_errors=True)
            except OSError:
                continue
        except OSError:
            continue
    folder = tempfile.mkdtemp(prefix=_PREFIX)
    lock = open(os.path.join(folder, "lock"), "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return folder, lock


def _start_janitor(folder: str) -> subprocess.Popen[bytes] | None:
    """Start a shell that removes the folder when this process is gone, however it ended, and kills its worker first."""
    script = 'p=0; while read -r n; do p=$n; done; [ "$p" -gt 0 ] && kill -9 "$p" 2>/dev/null; rm -rf "$0"'
    try:
        return subprocess.Popen(
            ["sh", "-c", script, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            bufsize=0,
        )
    except OSError:
        return None


# The worker.


class Worker:
    """Loads an adapter and runs networks by it; the networks lie in the folder of the supervisor."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.adapter: Any = None
        self.networks: collections.OrderedDict[str, Any] = collections.OrderedDict()
        self.sizes: dict[str, int] = {}
        self.arrays: dict[str, Any] = {}
        self.value: Any = None
        self.filler: Any = None
        memory = re.search(r"^MemTotal:\s*(\d+) kB", text("/proc/meminfo"), re.M)
        self.limit = int(memory.group(1)) * 1024 * _MEMORY_SHARE if memory else 2**28

    def answer(self, header: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        """Answer a request; whatever a runtime raises is an answer, too."""
        for name in header.get("release", ()):
            self.networks.pop(name, None)
            self.sizes.pop(name, None)
        try:
            found = getattr(self, "do_" + header["do"])(header, blobs)
        except ImportError as error:
            return {"kind": "absent", "module": error.name or str(error), "error": str(error)}, []
        except OSError as error:
            return {"kind": _kind_of(error), "error": str(error), "folder": self.folder}, []
        except Exception as error:
            return {"kind": "failed", "error": _reason(error)}, []
        made, more = found if isinstance(found, tuple) else (found, [])
        return dict(made, kind="ok"), more

    def do_open(self, header: dict[str, Any], blobs: list[bytes]) -> dict[str, Any]:
        """Take the processors, and load the adapter."""
        settings = header["settings"]
        cores = settings.get("cores") or usable()[-settings["threads"] :]
        try:
            os.sched_setaffinity(0, cores)
        except (AttributeError, OSError) as error:
            if settings.get("cores"):
                asked, there = written(sorted(cores)), written(usable())
                raise OSError("its cores are %s, and %s was asked for" % (there, asked)) from error
            cores = usable()
        import numpy  # noqa: F401 - where it is absent, that is said first

        space: dict[str, Any] = {"__name__": "nni_latency_adapter", "__file__": header["name"]}
        exec(compile(blobs[0], header["name"], "exec"), space)
        self.adapter = space["Adapter"](settings)
        return {"facts": self.adapter.facts(), "cores": written(sorted(cores))}

    def do_speeds(self, header: dict[str, Any], blobs: list[bytes]) -> dict[str, Any]:
        """Measure operations and bytes per second, as numpy reaches them."""
        import numpy

        factor = numpy.ones((_SIDE, _SIDE), numpy.float32)
        computed = 2 * _SIDE**3 / _fastest(lambda: numpy.matmul(factor, factor))
        source = numpy.ones(_COPIED, numpy.float32)
        copy = numpy.empty_like(source)
        moved = 2 * source.nbytes / _fastest(lambda: numpy.copyto(copy, source))
        return {"peak_flops": float("%.3g" % computed), "memory_bandwidth": float("%.3g" % moved)}

    def network(self, name: str, arrays: list[Any] | None = None, settling: int = 0) -> Any:
        """Return a network; it is loaded where it is not, and the one that waits the longest goes where memory ends.

        What was loaded runs a few times on arrays, until what a runtime does once is done.
        """
        if name not in self.networks:
            data = expand(self._content(name))
            self.networks[name] = self.adapter.load(data)
            self.sizes[name] = len(data)
            for _ in range(settling if arrays is not None else 0):
                self.networks[name].run(arrays)
            while len(self.networks) > 1 and sum(self.sizes.values()) > self.limit:
                oldest, _ = self.networks.popitem(last=False)
                del self.sizes[oldest]
        self.networks.move_to_end(name)
        return self.networks[name]

    def _content(self, name: str) -> bytes:
        with open(os.path.join(self.folder, "content." + name), "rb") as file:
            return file.read()

    def inputs(self, given: list[dict[str, Any]]) -> list[Any]:
        """Return arrays, which are kept for the next time."""
        import numpy

        found = []
        for item in given:
            key = json.dumps(item)
            if key not in self.arrays:
                flat = numpy.frombuffer(bytearray(expand(self._content(item["content"]))), item["dtype"])
                self.arrays[key] = flat.reshape(item["shape"])
            found.append(self.arrays[key])
        return found

    def do_run(self, header: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        """Run a network several times; return what it makes, or the shapes of that."""
        network, arrays = self.network(header["network"]), self.inputs(header["inputs"])
        made: list[Any] = []
        for _ in range(header["runs"]):
            made = network.run(arrays)
        return _described(made, header["values"])

    def do_times(self, header: dict[str, Any], blobs: list[bytes]) -> dict[str, Any]:
        """Time runs of a network."""
        arrays = self.inputs(header["inputs"])
        network = self.network(header["network"], arrays, header["settling"])
        return {"times": [timed(network.run, arrays) for _ in range(header["runs"])]}

    def do_profile(self, header: dict[str, Any], blobs: list[bytes]) -> dict[str, Any]:
        """Profile runs of a network."""
        arrays = self.inputs(header["inputs"])
        network = self.network(header["network"], arrays, header["settling"])
        return {"profile": network.profile(lambda: arrays, header["runs"])}

    def do_call(self, header: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        """Call a method of the adapter's network; its answer is bytes, or what JSON can hold."""
        return _answers(self.network(header["network"]), [header["method"]])

    def do_step(self, header: dict[str, Any], blobs: list[bytes]) -> dict[str, Any]:
        """Run a network on given inputs, or on what the step before returned."""
        if header["inputs"] is not None:
            self.value = self.inputs(header["inputs"])
        if header["network"] is not None:
            if self.value is None:
                raise RuntimeError("its process has lost what the part before returned")
            self.value = list(self.network(header["network"]).run(self.value))
        return {}

    def do_visit(self, header: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        """Warm a network up and time it, and profile it where that is asked for: one visit of a bench.

        The order is that of `nni_latency.measurement.LocalBench`. Where the weights or inputs must be cold, as many
        bytes as `flush` are written before every run, and fresh copies of the inputs are made.
        """
        settling = header["settling"]
        reference_inputs, arrays = self.inputs(header["reference_inputs"]), self.inputs(header["inputs"])
        reference = self.network(header["reference"], reference_inputs, settling)
        # Those that follow are run on what the one before returns, for the first time when they are warmed up.
        first, others = header["networks"][0], header["networks"][1:]
        chain = [self.network(first, arrays, settling)] + [self.network(name) for name in others]
        longest, runs, asked = header["longest"], header["runs"], header["profile"]

        def feed() -> list[Any]:
            return self._fed(arrays, header["flush"], header["copies"])

        def through(value: Any) -> Any:
            for network in chain:
                value = network.run(value)
            return value

        timed(reference.run, reference_inputs)
        found: dict[str, Any] = {"reference": timed(reference.run, reference_inputs), "parts": [], "around": []}
        usual = 0.0
        whole: list[float] = []
        for _ in range(header["warmups"]):
            usual = timed(through, feed())
        if asked is not None:
            runs = max(1, min(runs, int(longest / usual))) if usual else runs
            found["profile"], found["around"] = self._profiled(chain[0], feed, runs, asked)
        while len(whole) < runs and sum(whole) <= longest:
            if len(chain) > 1:
                found["parts"].append(_times_of(chain, feed()))
            whole.append(timed(through, feed()))
        found["whole"] = whole
        answers, more = _answers(chain[0], header["calls"])
        return dict(found, **answers), more

    def _profiled(
        self, network: Any, feed: Callable[[], list[Any]], runs: int, asked: dict[str, Any]
    ) -> tuple[Any, list[float]]:
        """Profile a network, and time as many runs of it around that where the profile costs something."""
        if asked["seconds"]:
            runs = max(runs, min(asked["most"], int(math.ceil(asked["seconds"] / timed(network.run, feed())))))
        after = runs // 2 if asked["around"] else 0
        before = runs - after if asked["around"] else 0
        around = [timed(network.run, feed()) for _ in range(before)]
        near = asked["near"]
        profile = network.profile(lambda: self._fed(feed(), _near_size(), False) if near else feed(), runs)
        return profile, around + [timed(network.run, feed()) for _ in range(after)]

    def _fed(self, arrays: list[Any], flush: int, copies: bool) -> list[Any]:
        if flush:
            import numpy

            if self.filler is None or self.filler.nbytes < flush:
                self.filler = numpy.zeros(flush // 8 + 1)
            self.filler[: flush // 8 + 1].fill(1.0)
        return [array.copy() for array in arrays] if copies else arrays


def _near_size() -> int:
    sizes = [size for level, size in caches() if level == "2"]
    return min(2 * max(sizes or [0]) or _NEAR, _MOST_NEAR)


def timed(run: Callable[[Any], Any], value: Any) -> float:
    """Return what a run takes [s]."""
    begin = time.perf_counter()
    run(value)
    return time.perf_counter() - begin


def _times_of(chain: list[Any], value: Any) -> list[float]:
    marks = [time.perf_counter()]
    for network in chain:
        value = network.run(value)
        marks.append(time.perf_counter())
    return [marks[place + 1] - marks[place] for place in range(len(chain))]


def _fastest(run: Callable[[], Any]) -> float:
    run()
    until, best = time.perf_counter() + _LONG, math.inf
    while time.perf_counter() < until:
        best = min(best, timed(lambda _: run(), None))
    return best


def _described(made: Iterable[Any], values: bool) -> tuple[dict[str, Any], list[bytes]]:
    import numpy

    arrays = [numpy.ascontiguousarray(item) for item in made]
    shapes = [{"dtype": str(item.dtype), "shape": list(item.shape)} for item in arrays]
    return {"results": shapes}, [item.tobytes() for item in arrays] if values else []


def _answers(network: Any, methods: Iterable[str]) -> tuple[dict[str, Any], list[bytes]]:
    """Call methods of a network without arguments; bytes are packed."""
    found, blobs = {}, []
    for name in methods:
        answer = getattr(network, name)()
        if isinstance(answer, bytes):
            blobs.append(zlib.compress(answer))
            answer = None
        found[name] = answer
    return {"answers": found}, blobs


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return "%s: %s" % (type(error).__name__, lines[0]) if lines else type(error).__name__


def _settle_process() -> None:
    """Die with the supervisor, be the first that is killed where memory ends, and keep freed memory."""
    try:
        library = ctypes.CDLL(None)
        library.prctl(1, signal.SIGKILL)
        for name, value in _MALLOPT.items():
            library.mallopt(name, value)
    except (AttributeError, OSError, TypeError):
        pass
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass


def work(folder: str, line_in: int, line_out: int) -> None:
    """Answer requests until the line ends: the whole life of a worker."""
    _settle_process()
    _write(line_out, MAGIC)
    worker, frames = Worker(folder), Frames()
    while True:
        frame = frames.next()
        if frame is not None:
            _write(line_out, pack(*worker.answer(*frame)))
            continue
        data = os.read(line_in, 2**20)
        if not data:
            return
        frames.feed(data)


def own_lines() -> tuple[int, int]:
    """Keep the line for frames: what else is printed goes to the errors, and nothing else is read."""
    line_in, line_out = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return line_in, line_out


def main(source: bytes) -> None:
    """Be the supervisor, given the word that starts a Python and where folders are; or a worker, given its folder."""
    line_in, line_out = own_lines()
    python, folder = sys.argv[1:3]
    if not python:
        work(folder, line_in, line_out)
        return
    given = os.environ.get("TMPDIR", "")
    if folder and os.access(folder, os.W_OK) and not os.access(given, os.W_OK):
        tempfile.tempdir = folder

    def stop(number: int, frame: Any) -> None:
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, stop)
    try:
        supervisor = Supervisor(source, line_in, line_out)
    except OSError as error:
        sys.exit("nni_latency cannot make a temporary folder: %s" % error)
    try:
        supervisor.serve()
    except (BrokenPipeError, FrameError) as error:
        sys.exit("nni_latency: the line is broken: %s" % error)
    finally:
        supervisor.close()


if __name__ == "nni_latency_agent":
    main(SOURCE)  # type: ignore[name-defined]  # noqa: F821
