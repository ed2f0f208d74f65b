"""Tracing of stopped processes, for `isolated.py`. Linux on x86_64 only."""

# Decisions: docs/internals/copies-on-hosts.md.

from __future__ import annotations

import ctypes
import os
import signal
import struct
from typing import Any

#: Numbers of system calls.
NUMBERS = {
    "write": 1, "open": 2, "close": 3, "lseek": 8, "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "madvise": 28,
    "getpid": 39, "sendmsg": 46, "recvmsg": 47, "clone": 56, "kill": 62, "chdir": 80, "capset": 126, "prctl": 157,
    "mount": 165, "setfsuid": 122, "setfsgid": 123, "futex": 202, "unshare": 272, "dup3": 292, "setns": 308,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "pidfd_open": 434, "pidfd_getfd": 438,
}  # fmt: skip
_NAMES = {number: name for name, number in NUMBERS.items()}

_CONT, _GETREGS, _SETREGS, _DETACH, _SYSCALL = 7, 12, 13, 17, 24
_SETOPTIONS, _GETEVENTMSG, _SEIZE, _INTERRUPT, _SYSCALL_INFO = 0x4200, 0x4201, 0x4206, 0x4207, 0x420E
_MARK_CALLS, _TRACE_FORKS, _KILL_WITH_TRACER = 1, 2, 1 << 20
#: Lets the system calls of the process pass its filter. The kernel asks for CAP_SYS_ADMIN in the first user namespace.
SUSPEND_FILTER = 1 << 21
_OPTIONS = _MARK_CALLS | _TRACE_FORKS | _KILL_WITH_TRACER
_CALL_STOP, _FORK_EVENT = signal.SIGTRAP | 0x80, signal.SIGTRAP | 1 << 8
_X86_64 = 0xC000003E
_WALL = 0x40000000
_NO_CALL = (1 << 64) - 1
_REGISTERS = "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss fs_base gs_base ds es fs gs"

#: A loop over a table: makes the call of each row, and puts the result into the row. r12 is the table, r13 the number of rows.
_LOOP = bytes.fromhex(
    "4d85ed7431498b0424498b7c2408498b742410498b5424184d8b5424204d8b4424284d8b4c24300f05498904244983c43849ffcdebcacc"
)
_ROW = struct.Struct("<7Q")
_PAGES, _TABLE, _DATA = 32 << 10, 1 << 10, 16 << 10

_libc = ctypes.CDLL(None, use_errno=True)
_ptrace = _libc.ptrace
_ptrace.restype = ctypes.c_long
_ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


class Registers(ctypes.Structure):
    """The kernel's `struct user_regs_struct`."""

    _fields_ = [(name, ctypes.c_ulong) for name in _REGISTERS.split()]


def call(name: str, *arguments: object) -> int:
    """Makes a system call of this thread."""
    converted = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result: int = _libc.syscall(ctypes.c_long(NUMBERS[name]), *converted)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def _request(kind: int, pid: int, address: Any = None, data: Any = None) -> int:
    result: int = _ptrace(kind, pid, address, data)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace {kind:#x}: {os.strerror(number)}")
    return result


class Traced:
    """A process that this thread traces. It ends with this thread, unless it is let go."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    @classmethod
    def seize(cls, pid: int, options: int = _OPTIONS) -> Traced:
        """Stops a running process."""
        _request(_SEIZE, pid, None, options)
        traced = cls(pid)
        _request(_INTERRUPT, pid)
        traced._wait()
        return traced

    def _wait(self) -> int:
        _, status = os.waitpid(self.pid, _WALL)
        if not os.WIFSTOPPED(status):
            raise ChildProcessError(f"the process {self.pid} has ended")
        return status >> 8

    def registers(self) -> Registers:
        found = Registers()
        _request(_GETREGS, self.pid, None, ctypes.byref(found))
        return found

    def set_registers(self, registers: Registers) -> None:
        _request(_SETREGS, self.pid, None, ctypes.byref(registers))

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def let_go(self) -> None:
        _request(_SETOPTIONS, self.pid, None, _OPTIONS)
        _request(_DETACH, self.pid)

    def _next_call(self) -> tuple[bool, int]:
        """Runs to the next end of a call, or the next begin. Returns true and the number at a begin."""
        _request(_SYSCALL, self.pid)
        if (stop := self._wait()) != _CALL_STOP:
            raise ChildProcessError(f"the process {self.pid} stopped with {stop:#x} and not at a call")
        info = ctypes.create_string_buffer(88)
        _request(_SYSCALL_INFO, self.pid, len(info), info)
        kind, machine = info.raw[0], struct.unpack_from("<I", info.raw, 4)[0]
        if machine != _X86_64:
            raise ChildProcessError(f"the process {self.pid} makes calls of another machine")
        return kind == 1, struct.unpack_from("<Q", info.raw, 24)[0]

    def run_to(self, name: str, allowed: frozenset[str]) -> None:
        """Runs to the begin of this call. Any call but those allowed ends the process before it is made."""
        while True:
            is_begin, number = self._next_call()
            if not is_begin:
                continue
            found = _NAMES.get(number, str(number))
            if found == name:
                return
            if found not in allowed:
                self.kill()
                raise ChildProcessError(f"the process {self.pid} was about to call {found}, and was ended")

    def clone_with(self, flags: int) -> Traced:
        """Makes the call `clone`, at whose begin the process is, with more flags, past the filter. Returns the new process, which has
        made no step."""
        registers = self.registers()
        registers.rdi |= flags
        self.set_registers(registers)
        _request(_SETOPTIONS, self.pid, None, _OPTIONS | SUSPEND_FILTER)
        _request(_SYSCALL, self.pid)
        if (stop := self._wait()) != _FORK_EVENT:
            error = -ctypes.c_long(self.registers().rax).value
            raise OSError(error, f"no copy was made: {os.strerror(error)} (stop {stop:#x})")
        made = ctypes.c_ulong()
        _request(_GETEVENTMSG, self.pid, None, ctypes.byref(made))
        _request(_SETOPTIONS, self.pid, None, _OPTIONS)
        copy = Traced(made.value)
        copy._wait()
        return copy

    def inject(self, at: int, name: str, *arguments: int) -> int:
        """Has the stopped process make a call with the instruction at `at`. The process is then as before."""
        before = self.registers()
        registers = Registers.from_buffer_copy(before)
        registers.rip, registers.rax, registers.orig_rax = at, NUMBERS[name], _NO_CALL
        for register, value in zip(("rdi", "rsi", "rdx", "r10", "r8", "r9"), arguments, strict=False):
            setattr(registers, register, value & _NO_CALL)
        self.set_registers(registers)
        if self._next_call() != (True, NUMBERS[name]):
            raise ChildProcessError(f"the process {self.pid} makes another call than {name}")
        self._next_call()
        result = ctypes.c_long(self.registers().rax).value
        self.set_registers(before)
        if -4096 < result < 0:
            raise OSError(-result, f"{name} in the process {self.pid}: {os.strerror(-result)}")
        return result


class Calls:
    """Calls that a stopped process makes one after the other, in one go: each stop costs two changes of processes.

    They are made by a loop in memory of its own, whose only writer is this program: the memory is the process's alone, and nobody
    without privileges may reach it while the process cannot be dumped.
    """

    def __init__(self, traced: Traced, at: int) -> None:
        """`at` is the place of a `syscall` instruction."""
        self._traced, self._at = traced, at
        self._memory = os.open(f"/proc/{traced.pid}/mem", os.O_RDWR | os.O_CLOEXEC)
        self._before = traced.registers()
        self._pages = traced.inject(at, "mmap", 0, _PAGES, 7, 0x22, _NO_CALL, 0)
        self._rows: list[tuple[str, tuple[int, ...]]] = []
        self._data = bytearray()
        os.pwrite(self._memory, _LOOP, self._pages)

    def data(self, data: bytes) -> int:
        """Returns the address that these bytes will have."""
        at = self._pages + _DATA + len(self._data)
        self._data += data + bytes(-len(data) % 16)
        return at

    def add(self, name: str, *arguments: int) -> None:
        self._rows.append((name, arguments))

    def run(self) -> None:
        """Makes the calls. Raises OSError for the first that fails."""
        self.add("kill", 1, signal.SIGSTOP)  # the first process of its namespace stops itself
        rows = b"".join(
            _ROW.pack(NUMBERS[name], *(value & _NO_CALL for value in values), *[0] * (6 - len(values)))
            for name, values in self._rows
        )
        if len(rows) > _DATA - _TABLE or len(self._data) > _PAGES - _DATA:
            raise ValueError("too many calls in one go")
        os.pwrite(self._memory, bytes(self._data), self._pages + _DATA)
        os.pwrite(self._memory, rows, self._pages + _TABLE)
        registers = Registers.from_buffer_copy(self._before)
        registers.rip, registers.orig_rax = self._pages, _NO_CALL
        registers.r12, registers.r13 = self._pages + _TABLE, len(self._rows)
        self._traced.set_registers(registers)
        _request(_CONT, self._traced.pid)
        if (stop := self._traced._wait()) != signal.SIGSTOP:
            raise ChildProcessError(f"the process {self._traced.pid} stopped with {stop:#x}")
        results = os.pread(self._memory, len(rows), self._pages + _TABLE)
        for index, (name, values) in enumerate(self._rows):
            (result,) = struct.unpack_from("<q", results, index * _ROW.size)
            if -4096 < result < 0:
                raise OSError(-result, f"{name}{values} in a copy: {os.strerror(-result)}")
        self._rows.clear()
        self._data.clear()

    def end(self) -> None:
        """Puts the process back to where it was."""
        self._traced.set_registers(self._before)
        self._traced.inject(self._at, "munmap", self._pages, _PAGES)
        os.close(self._memory)


def call_instruction(pid: int) -> int:
    """The address of a `syscall` instruction of the C library in the process."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            if "r-xp" in line and "/libc.so" in line:
                begin, end = (int(text, 16) for text in line.split()[0].split("-"))
                memory.seek(begin)
                found = memory.read(end - begin).find(b"\x0f\x05")
                if found >= 0:
                    return begin + found
    raise OSError("the process has no C library")
