"""`python -m sandglass --fd N --epoch E`: a native guest on the socket that it inherits as file descriptor N.

In isolated mode, which ignores PYTHONPATH:

    python -I -c 'import sys; sys.path.insert(0, sys.argv.pop(1)); from sandglass.__main__ import main; main()' \
        FOLDER --fd N --epoch E

FOLDER holds the package `sandglass`. With `--connect PATH` in place of `--fd N`, the process becomes the first one of a
container (`native/container.py`).
"""

from __future__ import annotations

import argparse

FRAMING = "delimiter: stateless runs over standard input and output; see sandglass/native/delimiter.py"


def main() -> None:
    """Reads the arguments, and serves until the host closes the channel."""
    parser = argparse.ArgumentParser(prog="python -m sandglass", description="A guest of sandglass-host.")
    channel = parser.add_mutually_exclusive_group()
    channel.add_argument("--fd", type=int, help="the socket to the host")
    channel.add_argument("--connect", metavar="PATH", help="where the host listens, in a container")
    parser.add_argument("--epoch", type=int, help="a number that every frame has to carry")
    parser.add_argument("--control", type=int, metavar="FD", help="the socket on which the host asks for copies")
    parser.add_argument("--filter", metavar="PATH", help="with --connect: a filter of system calls to put on first")
    parser.add_argument("--confine", action="store_true", help="write below a guest's own folders only (Landlock)")
    parser.add_argument("--preload", help="modules to import first, separated by commas")
    parser.add_argument("--zygote", action="store_true", help="fork a guest for each request on the socket")
    parser.add_argument("--framing", choices=["frames", "delimiter"], default="frames", help=FRAMING)
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds of a run, with delimiters")
    parser.add_argument(
        "--reap",
        choices=("descendants", "all"),
        default="descendants",
        help="what is ended after each cell: the guest's descendants, or all that run in its process namespace",
    )
    parser.add_argument("--journals", action="store_true", help="note what clocks and chance answer to executions")
    arguments = parser.parse_args()
    if arguments.framing == "delimiter":
        from sandglass.native.delimiter import serve as serve_runs

        serve_runs(arguments.preload, arguments.timeout)
    if arguments.fd is None and arguments.connect is None:
        parser.error("--fd is missing: sandglass-host starts guests, not people")
    if arguments.zygote:
        from sandglass.native.zygote import serve as serve_forks

        serve_forks(arguments.fd)
    if arguments.epoch is None:
        parser.error("--epoch is missing")
    fd = arguments.fd
    if fd is None:
        from sandglass.native.container import enter

        fd = enter(arguments.connect, arguments.filter)
    if arguments.confine:
        from sandglass.native.landlock import confine
        from sandglass.native.rlimits import bound_signals

        bound_signals()
        confine()
    if arguments.preload:
        from sandglass.native.zygote import preload

        preload(arguments.preload.split(","))
    control = None
    if arguments.control is not None:
        from sandglass.native.forks import stand_over

        control = arguments.control, stand_over()
    from sandglass.native.guest import Guest, serve

    kind = Guest
    if arguments.journals:
        from sandglass.native.recorded_guest import RecordedGuest as kind

    serve(fd, arguments.epoch, arguments.reap == "all", control, kind)


if __name__ == "__main__":
    main()
