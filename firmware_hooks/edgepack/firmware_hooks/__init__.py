"""Reference firmware hooks: small programs with the standard library alone, runnable unchanged.

Each module is a hook with a `parser()`, a function that decides, and a `main()`:

    python -P -m edgepack.firmware_hooks.thermal_guard --limit-c 80

`python -P -m edgepack.firmware_hooks install` installs a hook for the agent.
"""
