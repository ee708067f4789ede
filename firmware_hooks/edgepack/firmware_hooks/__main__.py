"""`python -P -m edgepack.firmware_hooks`: lists and installs the reference hooks."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from edgepack.errors import EdgepackError
from edgepack.firmware_hooks.install import (
    HOOKS,
    STAGES,
    WHENS,
    hook_parser,
    hook_path,
    install_hook,
)


def parser() -> argparse.ArgumentParser:
    """Return the command's arguments."""
    made = argparse.ArgumentParser(
        prog="python -P -m edgepack.firmware_hooks",
        description="Reference firmware hooks of edgepack.",
        epilog="example: python -P -m edgepack.firmware_hooks install thermal_guard "
        "--stage staged --when after --folder /etc/edgepack/hooks --setting limit-c=80",
    )
    commands = made.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list the hooks")
    install = commands.add_parser("install", help="write a hook into a hook folder, or a file")
    install.add_argument("name", choices=HOOKS)
    install.add_argument("--stage", choices=STAGES)
    install.add_argument("--when", choices=WHENS)
    install.add_argument("--folder", type=Path, help="hooks.folder of the agent")
    install.add_argument("--file", type=Path, help="firmware.hook of the agent, instead of a stage")
    install.add_argument(
        "--setting", action="append", default=[], metavar="KEY=VALUE", help="can be repeated"
    )
    install.add_argument("--order", type=int, choices=range(100), default=50, metavar="0..99")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    made = parser()
    given = made.parse_args(arguments)
    if given.command == "list":
        for name in HOOKS:
            summary = (hook_parser(name).description or "").partition("\n")[0]
            print(f"{name:16}  {summary}")
        return 0
    place = (given.stage, given.when, given.folder)
    if (None in place) if given.file is None else any(place):
        made.error("name --stage, --when and --folder, or --file alone")
    hook = given.file or hook_path(
        given.name,
        stage=given.stage,
        when=given.when,
        folder=given.folder,
        order=given.order,
    )
    try:
        install_hook(given.name, hook, given.setting)
    except EdgepackError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(hook)
    return 0


if __name__ == "__main__":
    sys.exit(main())
