"""The hot pages of a guest with checkpoints, in a process of their own that forks for real."""

from __future__ import annotations

import json
import subprocess
import sys

from native_host import FOLDER

#: Prints the hot pages as numbers of pages of `block`, of which the test's code writes to some between two copies.
BEGIN = """
import ctypes, json, mmap, os, resource, signal, sys
sys.path.insert(0, sys.argv[1])
from sandglass.native import hot_pages

PAGES = (80 << 20) // mmap.PAGESIZE
block = mmap.mmap(-1, PAGES * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
start = ctypes.addressof(ctypes.c_char.from_buffer(block))
fork = ctypes.CDLL(None).fork
hot = hot_pages.HotPages()
copies = []

def write(numbers):
    for number in numbers:
        block[number * mmap.PAGESIZE] = 1

def copy(is_idle=lambda: True, room=None):
    hot.find(hot_pages.lines_of_maps(), room)
    pid = fork()
    if pid == 0:
        signal.pause()
    copies.append(pid)
    hot.copy(is_idle)

def found():
    pages = {at // mmap.PAGESIZE for begin, size in hot._ranges for at in range(begin, begin + size, mmap.PAGESIZE)}
    return sorted(page - start // mmap.PAGESIZE for page in pages if 0 <= page * mmap.PAGESIZE - start < len(block))

def copied(numbers):
    # those of the pages that no copy shares
    with open("/proc/self/pagemap", "rb") as file:
        def is_own(number):
            file.seek((start // mmap.PAGESIZE + number) * 8)
            return file.read(8)[7] & 1
        return [number for number in numbers if is_own(number)]

write(range(PAGES))
try:
    result = None
"""
END = """
finally:
    for pid in copies:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
print(json.dumps(result))
"""


def run(code: str) -> object:
    lines = "\n".join("    " + line for line in code.splitlines())
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + lines + END, FOLDER], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_pages_that_were_written_since_the_last_copy_are_copied_ahead() -> None:
    code = (
        "copy(); cold = copied(range(100)); write(range(0, 100, 2)); copy()\nresult = cold, found(), copied(range(100))"
    )
    pages = [*range(0, 100, 2)]
    assert run(code) == [[], pages, pages]


def test_pages_that_are_written_later_join_them() -> None:
    assert run("copy(); write([1]); copy(); write([5]); copy()\nresult = found(), copied(range(9))") == [[1, 5], [1, 5]]


def test_much_that_was_written_at_once_is_not_copied_ahead() -> None:
    assert run("copy(); write(range(0, PAGES, 2)); copy()\nresult = found(), copied(range(50))") == [[], []]


def test_much_that_was_written_at_once_changes_no_hot_pages() -> None:
    assert run("copy(); write([1]); copy(); write(range(0, PAGES, 2)); copy()\nresult = copied(range(9))") == [1]


MAKE_ARRAY = "array = range(100, 101 + (2 << 20) // mmap.PAGESIZE)\ncopy(); write([1, *array]); copy()\n"


def test_a_new_array_is_not_copied_ahead() -> None:
    assert run(MAKE_ARRAY + "result = found(), copied([1, 100, 500])") == [[1], [1]]


def test_a_row_that_could_be_of_small_arrays_is_copied_ahead() -> None:
    assert run(MAKE_ARRAY.replace("101", "100") + "result = len(found()), copied([1, 100])") == [513, [1, 100]]


def test_an_array_that_is_written_again_is_copied_ahead() -> None:
    code = "write(array[:5]); write(array[200:]); copy()\nwrite(array); copy()\nresult = copied([1, 100, 400])"
    assert run(MAKE_ARRAY + code) == [1, 100, 400]


def test_the_heap_has_no_arrays_to_leave_out() -> None:
    code = (
        "hot_pages._own_rows = lambda maps: iter([(True, start, 8 << 20), (False, start + (16 << 20), 8 << 20)])\n"
        "copy(); copy()\nresult = hot._ranges == [(start, 8 << 20)]"
    )
    assert run(code) is True


def test_pages_that_would_take_more_than_the_room_are_not_copied_ahead() -> None:
    code = "copy(); write(range(100)); copy(room={room})\nresult = len(found()), len(copied(range(100)))"
    assert run(code.format(room="100 * mmap.PAGESIZE - 1")) == [100, 0]
    assert run(code.format(room="1 << 30")) == [100, 100]


def test_pages_that_are_written_no_longer_are_forgotten() -> None:
    more = "for _ in range(40):\n    copy(); write([2])\nresult = found()"
    assert run("copy(); write([1]); copy()\n" + more) == [2]


def test_a_message_comes_first() -> None:
    assert run("copy(); write([1]); copy(lambda: False)\nresult = found(), copied([1])") == [[1], []]


def test_a_system_that_tells_nothing_has_none() -> None:
    refuse = "def refuse(*_):\n    raise PermissionError\nhot_pages.open_fd = refuse\n"
    assert run(refuse + "copy(); write([1]); copy()\nresult = found(), copied([1])") == [[], []]
