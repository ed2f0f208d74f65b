"""Holds back the system calls of a shadow: a copy of a native guest that runs code which has not been asked for yet.

A few system calls only concern the shadow's own memory and are let through. All others wait until the shadow is
promoted, and are made then. So the code's effects on the world, and its looks at the world, happen after the code was
asked for. Linux provides the means. With "syscall user dispatch" (Documentation/admin-guide/syscall-user-dispatch.rst),
the kernel calls a handler for each system call of a thread. The vDSO's functions, which tell the time without a system
call, are overwritten by ones that make the call.

One clock stays readable, because CPython reads it for every lock that it takes: `CLOCK_MONOTONIC`. So Python's
functions for this clock make another system call first, wherever code refers to them. Only C code of libraries can
still read the clock, to measure its own durations, and these are right.

The handler is machine code, because Python cannot run inside of it. So the gate works on x86-64 only.
"""

# Decisions: docs/internals/running-ahead.md.

from __future__ import annotations

import ctypes
import struct
import time
from contextlib import suppress
from os import close
from platform import machine

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

#: The handler, called with a signal's number, `siginfo_t` and `ucontext_t`. Its data is in the next page. At 0: whether
#: it is called. At 1: whether calls may go on. At 4: the last call that had to wait. At 8: the descriptor that may be
#: sent on. At 16: the descriptor that has a byte when calls may go on. At 32: a bit for each call that need not wait.
#: (`test_forks.py` assembles the right side.)
_HANDLER = """
53                          push rbx
55                          push rbp
56                          push rsi
48 89 d3                    mov rbx, rdx
48 8d 2d f3 0f 00 00        lea rbp, [rip + 0xff3]
83 7e 08 02                 cmp dword ptr [rsi + 8], 2       # SYS_USER_DISPATCH, not somebody's signal
0f 85 be 00 00 00           jne done
8b 46 18                    mov eax, dword ptr [rsi + 24]    # which call it is
3d ff 01 00 00              cmp eax, 511
77 4a                       ja wait
83 f8 09                    cmp eax, 9                       # mmap
74 1b                       je map
83 f8 2c                    cmp eax, 44                      # sendto
74 1e                       je send
3d e4 00 00 00              cmp eax, 228                     # clock_gettime
74 21                       je clock
3d ca 00 00 00              cmp eax, 202                     # futex
74 22                       je futex
0f a3 45 20                 bt dword ptr [rbp + 32], eax
72 72                       jc make
eb 2a                       jmp wait
                        map:
83 7b 28 ff                 cmp dword ptr [rbx + 40], -1     # of no file
74 6a                       je make
eb 22                       jmp wait
                        send:
8b 4b 68                    mov ecx, dword ptr [rbx + 104]
3b 4d 08                    cmp ecx, dword ptr [rbp + 8]
74 60                       je make
eb 18                       jmp wait
                        clock:
83 7b 68 01                 cmp dword ptr [rbx + 104], 1     # CLOCK_MONOTONIC
74 58                       je make
eb 10                       jmp wait
                        futex:
8b 4b 70                    mov ecx, dword ptr [rbx + 112]
83 e1 7f                    and ecx, 127
83 f9 01                    cmp ecx, 1                       # FUTEX_WAKE
74 4b                       je make
83 f9 0a                    cmp ecx, 10                      # FUTEX_WAKE_BITSET
74 46                       je make
                        wait:
89 45 04                    mov dword ptr [rbp + 4], eax
                        again:
80 7d 01 00                 cmp byte ptr [rbp + 1], 0
75 2b                       jne go
31 c0                       xor eax, eax                     # read
8b 7d 10                    mov edi, dword ptr [rbp + 16]
48 89 e6                    mov rsi, rsp
ba 01 00 00 00              mov edx, 1
0f 05                       syscall
83 f8 01                    cmp eax, 1
74 17                       je go
83 f8 fc                    cmp eax, -4                      # EINTR
74 e1                       je again
80 7d 01 00                 cmp byte ptr [rbp + 1], 0
75 0c                       jne go
b8 e7 00 00 00              mov eax, 231                     # exit_group
bf 01 00 00 00              mov edi, 1
0f 05                       syscall
                        go:
c6 45 01 01                 mov byte ptr [rbp + 1], 1
c6 45 00 00                 mov byte ptr [rbp], 0
48 83 ab a8 00 00 00 02     sub qword ptr [rbx + 168], 2     # the instruction is run once more
eb 24                       jmp done
                        make:
48 8b 7b 68                 mov rdi, qword ptr [rbx + 104]
48 8b 73 70                 mov rsi, qword ptr [rbx + 112]
48 8b 93 88 00 00 00        mov rdx, qword ptr [rbx + 136]
4c 8b 53 38                 mov r10, qword ptr [rbx + 56]
4c 8b 43 28                 mov r8, qword ptr [rbx + 40]
4c 8b 4b 30                 mov r9, qword ptr [rbx + 48]
0f 05                       syscall
48 89 83 90 00 00 00        mov qword ptr [rbx + 144], rax
                        done:
5e                          pop rsi
5d                          pop rbp
5b                          pop rbx
c3                          ret
b8 0f 00 00 00              mov eax, 15                      # rt_sigreturn
0f 05                       syscall
"""
_HEX_CHARS = 24
#: Instructions before and after the address of a C function: they call `getppid`, ignore its result, then jump to the
#: function.
#: push rdi; push rsi; mov eax, 110; syscall; pop rsi; pop rdi; mov rax, the function
_BEFORE = bytes.fromhex("57 56 b8 6e 00 00 00 0f 05 5e 5f 48 b8")
_AFTER = bytes.fromhex("ff e0")  # jmp rax
_RETURN_BYTES = 7  # the last two instructions
_PAGE = 4096
_PROT_READ, _PROT_WRITE, _PROT_EXEC = 1, 2, 4
_PRIVATE_ANONYMOUS = 0x22
_SIGSYS = 31
_SA_SIGINFO, _SA_RESTORER = 0x4, 0x04000000
_SYS_RT_SIGACTION = 13
_PR_SET_SYSCALL_USER_DISPATCH, _ON, _OFF = 59, 1, 0
#: System calls that need not wait. Those of memory, and two without effects: mprotect, munmap, brk, sched_yield,
#: mremap, madvise, clock_getres. Calls for the thread's signals do wait, since a handler's return would undo their
#: effect.
_FREE = (10, 11, 12, 24, 25, 28, 229)
#: The vDSO's functions that tell the time or the processor, and the system call that replaces each.
_VDSO = {
    b"__vdso_gettimeofday": 96,
    b"__vdso_time": 201,
    b"__vdso_clock_gettime": 228,
    b"__vdso_clock_getres": 229,
    b"__vdso_getcpu": 309,
    b"__vdso_getrandom": 318,
}
_MOST_SYMBOLS = 64
_CLOCKS = (
    time.monotonic,
    time.monotonic_ns,
    time.perf_counter,
    time.perf_counter_ns,
    time.clock_gettime,
    time.clock_gettime_ns,
)
#: Offsets of the description in a C function's object, and of the function in the description: `PyCFunctionObject`,
#: `PyMethodDef`.
_AT_DESCRIPTION, _AT_FUNCTION = 16, 8
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.syscall.restype = ctypes.c_long
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
_read, _write = ctypes.string_at, ctypes.memmove


def is_possible() -> bool:
    """Returns true when this machine may support the gate. Only an attempt shows whether it really does."""
    return machine() == "x86_64" and ctypes.sizeof(ctypes.c_void_p) == 8


class SyscallGate:
    """Holds back the system calls of the thread that calls `enclose`."""

    def __init__(self, channel: int, release: int) -> None:
        """Prepares the gate. `channel` may always be sent on.

        `release` has a byte once no call has to wait any more; `remove` closes it. Make the gate while there is one
        thread only, because this overwrites the vDSO. Raises OSError where the machine cannot do it.
        """
        code = bytes.fromhex("".join(line[:_HEX_CHARS] for line in _HANDLER.splitlines()))
        self._code = _place()
        self._data = self._code + _PAGE
        free = bytearray(64)
        for number in _FREE:
            free[number // 8] |= 1 << number % 8
        _write(self._code, code, len(code))
        _write(self._data, struct.pack("<qqqq", 0, channel, release, 0) + free, 96)
        self._functions: dict[int, int] = {}  # clocks' functions, by the address that refers to each
        at = self._data + _PAGE  # system calls made from the first page are let through
        for clock in _CLOCKS:
            place = ctypes.c_uint64.from_address(id(clock) + _AT_DESCRIPTION).value + _AT_FUNCTION
            function = self._functions[place] = ctypes.c_uint64.from_address(place).value
            around = _BEFORE + struct.pack("<Q", function) + _AFTER
            _write(at, around, len(around))
            ctypes.c_uint64.from_address(place).value = at
            at += len(around)
        for page in (self._code, self._data + _PAGE):
            _check(_libc.mprotect(page, _PAGE, _PROT_READ | _PROT_EXEC))
        self._release = release
        self._size = len(code)
        self._is_up = False
        self._selector = ctypes.c_uint8.from_address(self._data)
        self._released = ctypes.c_uint8.from_address(self._data + 1)
        self._replaced = ctypes.create_string_buffer(32)
        _overwrite_vdso()

    def enclose(self) -> None:
        """Puts the gate up: from now on, this thread reaches no further than its own memory."""
        if not self._is_up:
            self._is_up = True
            handler, flags = self._code, _SA_SIGINFO | _SA_RESTORER
            action = struct.pack("<QQQQ", handler, flags, handler + self._size - _RETURN_BYTES, 2**64 - 1)
            _check(_libc.syscall(_SYS_RT_SIGACTION, _SIGSYS, action, self._replaced, 8))
            _check(_libc.prctl(_PR_SET_SYSCALL_USER_DISPATCH, _ON, self._code, _PAGE, self._data))
        self._selector.value = 1
        if self._released.value:
            self._selector.value = 0

    def pause(self) -> None:
        """Lets the thread do work of the runtime's."""
        self._selector.value = 0

    def release(self) -> None:
        """Opens the gate for good. Any thread may call this; the waiting thread may hold the interpreter's lock."""
        self._released.value = 1
        self._selector.value = 0

    def remove(self) -> None:
        """Removes the gate. The thread that it encloses calls this."""
        with suppress(OSError):
            close(self._release)
        self._selector.value = 0
        for place, function in self._functions.items():
            ctypes.c_uint64.from_address(place).value = function
        if not self._is_up:
            return
        _check(_libc.prctl(_PR_SET_SYSCALL_USER_DISPATCH, _OFF, 0, 0, 0))
        found = ctypes.create_string_buffer(32)
        _check(_libc.syscall(_SYS_RT_SIGACTION, _SIGSYS, None, found, 8))
        if struct.unpack_from("<Q", found)[0] == self._code:  # otherwise code has set a handler of its own
            _check(_libc.syscall(_SYS_RT_SIGACTION, _SIGSYS, self._replaced, None, 8))


_places: list[int] = []


def _place() -> int:
    """Returns three writable pages of memory. They stay for good: a copy of a copy uses them again."""
    if _places:
        _check(_libc.mprotect(_places[0], 3 * _PAGE, _PROT_READ | _PROT_WRITE))
        return _places[0]
    found = _libc.mmap(None, 3 * _PAGE, _PROT_READ | _PROT_WRITE, _PRIVATE_ANONYMOUS, -1, 0)
    if found is None or found == 2**64 - 1:
        raise OSError(ctypes.get_errno(), "there is no memory for the handler of system calls")
    _places.append(int(found))
    return _places[0]


def _overwrite_vdso() -> None:
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        ranges = [line.split()[0].split("-") for line in file if line.endswith(" [vdso]\n")]
    for first, end in ((int(first, 16), int(end, 16)) for first, end in ranges):
        functions = _functions_of(first)
        # The whole mapping, because the kernel does not split it.
        _check(_libc.mprotect(first, end - first, _PROT_READ | _PROT_WRITE))
        for address, call in functions.items():
            code = b"\xb8" + struct.pack("<I", call) + b"\x0f\x05\xc3"  # mov eax, call; syscall; ret
            _write(address, code, len(code))
        _check(_libc.mprotect(first, end - first, _PROT_READ | _PROT_EXEC))


def _functions_of(base: int) -> dict[int, int]:
    """Reads the symbols of the vDSO, an ELF image at `base`: addresses of functions, and the call for each."""
    offset, size, count = struct.unpack_from("<Q14xHH", _read(base, 64), 32)
    headers = [struct.unpack("<IIQQQQQQ", _read(base + offset + size * index, 56)) for index in range(count)]
    loaded = next(header[3] for header in headers if header[0] == 1)
    dynamic = next(header for header in headers if header[0] == 2)
    entries = _read(base + dynamic[2], dynamic[5])
    tags = dict(struct.iter_unpack("<QQ", entries))
    slide = base - loaded
    strings, symbols = tags[5] + slide, tags[6] + slide
    found = {}
    for index in range(min(_MOST_SYMBOLS, max(strings - symbols, 0) // 24)):
        name, _, _, section, value, _ = struct.unpack("<IBBHQQ", _read(symbols + 24 * index, 24))
        call = _VDSO.get(ctypes.string_at(strings + name))
        if section and call is not None:
            found[slide + value] = call
    if not found:
        raise OSError(38, "the vDSO has none of the functions that are known")
    return found


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), "the kernel has no dispatch of system calls to their thread")
