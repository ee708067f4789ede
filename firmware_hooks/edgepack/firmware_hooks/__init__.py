"""Reference firmware hooks: small programs of the standard library alone, runnable as they are.

Each module is one hook with a `parser()`, a function that decides, and a `main()`:

    python -P -m edgepack.firmware_hooks.thermal_guard --limit-c 80

`python -P -m edgepack.firmware_hooks install` puts one where the agent runs it.
"""
