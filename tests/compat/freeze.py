"""Freezes samples of all formats of the current version: bundles, states, messages, a database.

    python -m tests.compat.freeze

Run the program after a format change before the first release. After a release its samples stay
unchanged, because later versions must read these samples; the samples of a new version are added.
"""

from tests.compat.freeze_bundle import freeze_bundles
from tests.compat.freeze_database import freeze_database
from tests.compat.freeze_state import freeze_states

if __name__ == "__main__":
    freeze_bundles()
    freeze_states()
    freeze_database()
