"""Checks an environment against the requirements.txt beside this file: each package pinned there has exactly that version,
and imports.

A missing library of the system shows here, at the build, and not in a user's session.
"""

import importlib
import pathlib
import re
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, version

lines = (pathlib.Path(__file__).parent / "requirements.txt").read_text("utf-8").splitlines()
needed = "# what those need"
dependencies = lines.index(needed) if needed in lines else len(lines)
found_pins = ((re.match(r"([\w.-]+)(?:\[.*\])?\s*==\s*([^\s;,]+)$", line.strip()), at) for at, line in enumerate(lines))
pins = [(pin.groups(), at < dependencies) for pin, at in found_pins if pin]

modules: dict[str, list[str]] = {}
for module, distributions in packages_distributions().items():
    for distribution in distributions:
        modules.setdefault(re.sub(r"[-_.]+", "-", distribution.lower()), []).append(module)

faults = []
imported = 0
for (name, pinned), wanted in pins:
    try:
        found = version(name)
    except PackageNotFoundError:
        found = None
    if found != pinned:
        faults.append(f"{name}: {pinned} is pinned, {found or 'nothing'} is installed")
        continue
    for module in modules.get(re.sub(r"[-_.]+", "-", name.lower()), []) if wanted else []:
        if module.isidentifier() and not module.startswith("_"):
            try:
                importlib.import_module(module)
                imported += 1
            except Exception as error:
                faults.append(f"{name}: import {module}: {type(error).__name__}: {error}")

print("\n".join(faults) if faults else f"{len(pins)} packages, {imported} modules imported")
sys.exit(bool(faults))
