"""Users of several servers, each of whom knows what every variable of a session should be.

A user repeats a request as docs/server/many-servers.md says: when the answer, or the missing connection, says that nothing was done.
"""

from __future__ import annotations

import ast
import json
import random
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

from http_server import KEY, PATIENCE_SECONDS

#: Words of the answers after which a cell may have run.
POSSIBLY_DONE = ("may have been carried out", "the code ran", "the code was stopped")


class Wrong(Exception):
    """A server lost something, did something twice, or gave an answer that a client cannot act on."""


class Unanswered(Wrong):
    """A request that may have been carried out or not, or that was refused. `status` is 0 if the connection broke."""

    def __init__(self, what: str, status: int = 0) -> None:
        super().__init__(what)
        self.status = status


class Balancer:
    """The addresses of the servers, from which each request gets a random one."""

    def __init__(self, addresses: list[str], seed: int) -> None:
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self._addresses = addresses
        #: The answers and failures that users met, by their names.
        self.counts: Counter[str] = Counter()
        self._troubles = self._under_way = 0

    def replace(self, old: str, new: str) -> None:
        with self._lock:
            self._addresses[self._addresses.index(old)] = new

    def count(self, name: str) -> None:
        with self._lock:
            self.counts[name] += 1

    @contextmanager
    def trouble(self) -> Iterator[None]:
        """A block in which something goes wrong with the servers."""
        with self._lock:
            self._troubles += 1
            self._under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1

    def calm(self) -> int | None:
        """The number of a time in which nothing goes wrong; None while something does."""
        with self._lock:
            return None if self._under_way else self._troubles

    def ask(self, method: str, path: str, body: Any) -> Any:
        """Returns the JSON of an answer without an error. Repeats what did nothing."""
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            with self._lock:
                address = self._chance.choice(self._addresses)
            headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
            request = urllib.request.Request(address + path, json.dumps(body).encode(), headers, method=method)
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
                    return json.loads(response.read())
            except urllib.error.HTTPError as error:
                told = json.loads(error.read())["error"]
                may_repeat = error.code in (503, 508) and "Retry-After" in error.headers
                if not may_repeat or "nothing was done" not in told["message"]:
                    raise Unanswered(f"{method} {path}: {error.code} {told}", error.code) from None
                self.count(told["code"])
                time.sleep(0.1)
            except urllib.error.URLError as error:
                if not isinstance(error.reason, ConnectionRefusedError):
                    raise Unanswered(f"{method} {path}: {error.reason!r}") from None
                self.count("refused connections")
            except (ConnectionError, HTTPException) as error:
                raise Unanswered(f"{method} {path}: {error!r}") from None
        raise Wrong(f"{method} {path} is never answered")


class User(threading.Thread):
    """A user with one session, who appends numbers to a list and looks at all of them, until told to stop."""

    def __init__(self, balancer: Balancer, number: int) -> None:
        super().__init__(name=f"user {number}")
        self._balancer = balancer
        self._number = number
        self._session = self._new_session()
        self._stopped = threading.Event()
        self._progress = threading.Condition()
        #: The number of cells that ran.
        self.cells = 0
        #: The lists that the session may hold.
        self._may: list[list[int]] = [[]]
        self.problem: BaseException | None = None

    def _new_session(self) -> str:
        made = self._balancer.ask("POST", "/v1/sessions", {"context": f"context {self._number}"})
        session: str = made["id"]
        return session

    def _code(self) -> str:
        return f"seen = globals().get('seen', []) + [{self.cells}]\n(context, seen)"

    def _cell(self) -> Any:
        return self._balancer.ask("POST", f"/v1/sessions/{self._session}/execute", {"code": self._code()})

    def run(self) -> None:
        try:
            while not self._stopped.is_set():
                self.act()
        except BaseException as problem:
            self.problem = problem
        finally:
            with self._progress:
                self._progress.notify_all()

    def act(self) -> None:
        """Runs a cell, and compares all variables with what they should be."""
        try:
            run = self._cell()
        except Unanswered as cut:
            if cut.status != 0:
                raise
            # The system cuts connections that a server had not accepted when it closed its port.
            self._balancer.count("cut connections")
            self._may_have_run()
            return
        expected = [repr((f"context {self._number}", [*seen, self.cells])) for seen in self._may]
        if (run["outcome"], run["state"]["status"]) != ("ok", "kept") or run["result"] not in expected:
            raise Wrong(f"session {self._session}: {run}, and not one of {expected}")
        self._may = [ast.literal_eval(run["result"])[1]]
        self._has_run()

    def _may_have_run(self) -> None:
        """Notes a cell of which nobody knows if it ran. Its number is not used again."""
        self._may += [[*seen, self.cells] for seen in self._may]
        self._has_run()

    def _has_run(self) -> None:
        self._balancer.count("cells")
        with self._progress:
            self.cells += 1
            self._progress.notify_all()

    def waits_for(self, cells: int) -> None:
        """Waits until so many cells have run."""
        with self._progress:
            self._progress.wait_for(lambda: self.cells >= cells or self.problem is not None, PATIENCE_SECONDS)
        if self.problem is not None:
            raise self.problem
        if self.cells < cells:
            raise Wrong(f"{self.name} stands still")

    def stop(self) -> None:
        self._stopped.set()
        self.join(2 * PATIENCE_SECONDS)
        if self.problem is not None:
            raise self.problem


class Forgiving(User):
    """A user of servers that are killed as well. What such a server had since the last sleep may be lost, if the client is told.

    Each cell writes its number into the file `ledger`, if there is one. So a cell that ran twice, or not at all, shows.
    """

    def __init__(self, balancer: Balancer, number: int, ledger: Path | None = None) -> None:
        super().__init__(balancer, number)
        self._chance = random.Random(number)
        self._ledger = ledger
        self._begin([])

    def _begin(self, seen: list[int]) -> None:
        #: The cells whose effects the session has, and after them those of which nobody knows.
        self._sure, self._open = seen, list[int]()
        self._last_id = 0
        #: The calm in which the last cell ran.
        self._calm: int | None = None
        #: The length of the list that is certainly stored, and the number of the last execution that is. None before the first sleep.
        self._stored: tuple[int, int] | None = None

    def _code(self) -> str:
        # Another process has the session's variables from the store.
        woken = "import os\nwoken = globals().get('pid') not in (None, os.getpid())\npid = os.getpid()\n"
        note = "" if self._ledger is None else f"print({self.cells}, file=open({str(self._ledger)!r}, 'a'))\n"
        return f"{woken}{note}seen = globals().get('seen', []) + [{self.cells}]\n(context, seen, woken)"

    def act(self) -> None:
        # Sessions sleep in some pauses, so that kills meet sessions of all kinds.
        self._stopped.wait(self._chance.choice((0, 0, 0.2, 1.5)))
        try:
            if self._chance.random() < 0.3:
                self._look()
            calm = self._balancer.calm()
            run = self._cell()
        except Unanswered as refused:
            self._is_refused(refused)
        else:
            self._compare(run)
            self._calm = calm

    def _look(self) -> None:
        """Looks if the session sleeps. If its server may have been killed, it may sleep in an older state."""
        told = self._balancer.ask("GET", f"/v1/sessions/{self._session}", None)
        is_certain = self._calm is not None and self._calm == self._balancer.calm() and not self._open
        if told.get("suspended") and is_certain:
            self._stored = (len(self._sure), self._last_id)
            self._balancer.count("seen asleep")

    def _is_refused(self, refused: Unanswered) -> None:
        self._balancer.count(f"unanswered ({refused.status})")
        if refused.status == 404:
            if self._stored is not None:
                raise Wrong(f"session {self._session} was stored, and is lost: {refused}")
            self._session = self._new_session()
            self._begin([])
        elif refused.status in (0, 503):
            if refused.status == 0 or any(word in str(refused) for word in POSSIBLY_DONE):
                self._may_have_run()
            self._stopped.wait(0.2)
        else:
            raise refused

    def _may_have_run(self) -> None:
        self._open.append(self.cells)
        self._has_run()

    def _compare(self, run: Any) -> None:
        """Compares the variables and the number of the execution with what they may be."""
        told = f"session {self._session} may hold {self._sure} and some of {self._open}, stored {self._stored}, and has {run}"
        if run["outcome"] != "ok":
            raise Wrong(told)
        context, (*before, last), is_woken = ast.literal_eval(run["result"])
        is_kept = run["state"]["status"] == "kept"
        least, least_id = self._stored or (0, 0)
        fits = self._may_hold(before) and (len(before) >= len(self._sure) if is_kept else len(before) >= least)
        if not fits or last != self.cells or context != f"context {self._number}":
            raise Wrong(told)
        if run["id"] <= (self._last_id if is_kept else least_id):
            raise Wrong(f"the number of the execution went back from {self._last_id}: {told}")
        if is_woken:
            self._stored = (len(before), run["id"] - 1)
        self._sure, self._open, self._last_id = [*before, last], [], run["id"]
        self._balancer.count(run["state"]["status"])
        self._has_run()

    def _may_hold(self, seen: list[int]) -> bool:
        """Tells if the list begins like that of the certain cells, and goes on with some of the others in their order."""
        sure = len(self._sure)
        rest = iter(self._open)
        return seen[:sure] == self._sure[: len(seen)] and all(cell in rest for cell in seen[sure:])

    def checks_ledger(self) -> None:
        """Looks for a cell that ran twice, and for one that was answered and did not run."""
        assert self._ledger is not None
        cells = [int(line) for line in self._ledger.read_text().split()]
        if twice := [cell for cell, times in Counter(cells).items() if times > 1]:
            raise Wrong(f"{self.name}: the cells {twice} ran twice")
        if lost := set(self._sure) - set(cells):
            raise Wrong(f"{self.name}: the cells {sorted(lost)} were answered, and did not run")

    def stop_waiting(self) -> None:
        """Ends the pauses between cells, and `run` after the present cell."""
        self._stopped.set()

    def end(self) -> None:
        """Stops, and leaves the problem for later."""
        self.stop_waiting()
        self.join(2 * PATIENCE_SECONDS)


class Keeping(Forgiving):
    """A user of a session with `persist`. What a cell left is never lost once it was answered, unless the answer said so (`unkept`)."""

    def _new_session(self) -> str:
        made = self._balancer.ask("POST", "/v1/sessions", {"context": f"context {self._number}", "persist": True})
        session: str = made["id"]
        return session

    def _begin(self, seen: list[int]) -> None:
        super()._begin(seen)
        self._stored = (0, 0)  # it is stored before it is there

    def _look(self) -> None:
        """Looks at the session, wherever it is open. It is stored in any case."""
        self._balancer.ask("GET", f"/v1/sessions/{self._session}", None)

    def _is_refused(self, refused: Unanswered) -> None:
        if refused.status == 409 and "persist_in_use" not in str(refused):
            raise refused
        if refused.status not in (0, 409, 503):
            super()._is_refused(refused)
            return
        self._balancer.count(f"unanswered ({refused.status}) with persist")
        if "nothing was done" not in str(refused):
            self._may_have_run()
        self._stopped.wait(0.2)

    def _compare(self, run: Any) -> None:
        super()._compare(run)
        if run.get("unkept") is None:
            self._stored = (len(self._sure), run["id"])
        else:
            self._balancer.count("unkept")


def all_go_on(users: list[User], cells: int = 2) -> None:
    """Waits until each user has run so many more cells."""
    goals: list[tuple[Callable[[int], None], int]] = [(user.waits_for, user.cells + cells) for user in users]
    for wait, goal in goals:
        wait(goal)
