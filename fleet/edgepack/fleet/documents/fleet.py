"""The fleet as a whole: numbers, events, and reasons of rejections."""

import msgspec


class FleetInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet at a glance.

    Attributes:
        tenant, broker: The fleet's tenant and broker.
        controller: Name of the controller that answers.
        leader: Name of the leading controller; the same for a single controller.
        is_connected: Whether the controller is connected to the broker now.
        broker_is_tls: Whether devices need certificates.
        devices, online: Enrolled devices, and connected devices.
        counters: Messages by outcome.
        dropped: Messages that were dropped of the devices of which most were, by device.
        sent_bytes: Chunk bytes the depot sent: to all (`broadcast`), in coded messages to all
            (`coded`), to a single device (`repair`).
        pace_bytes_per_s: The depot's send rate over the last seconds.
        warnings: Problems that need a person: failures of the answering controller, and upcoming
            expiries; a sentence each.
        inferences: Real inferences that devices reported since the controller serves, by outcome:
            `finished`, `failed` (raised), `not_finite` (finished, with NaN or infinity where the
            golden outputs have none), `bad_inputs` (the same, with NaN or infinity in an input).
        energy: Energy that devices reported since then, as `millijoules`, and the `inferences` that
            the energy stands for.
    """

    tenant: str
    broker: str
    is_connected: bool
    broker_is_tls: bool
    devices: int
    online: int
    counters: dict[str, int]
    sent_bytes: dict[str, int]
    pace_bytes_per_s: float
    dropped: dict[str, int] = {}
    controller: str = ""
    leader: str = ""
    warnings: tuple[str, ...] = ()
    inferences: dict[str, int] = {}
    energy: dict[str, int] = {}


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """Event of a device or a rollout.

    Attributes:
        id: Grows from event to event, so that a reader can request newer events.
        at: Time, seconds since the epoch (UTC), by the clock of the device or controller.
        device: The device; "" for a rollout.
        kind: `rollout`, or the device's kind: `transition`, `refused`, `hook`, `warning`,
            `watch`.
        bundle: Root digest of the event's bundle; "" for none.
        from_state, to_state: The transition; "" where there was none.
        because: The reason in a sentence.
        rollout: Id of the rollout; "" where there was none.
    """

    id: int
    at: float
    device: str
    kind: str
    bundle: str
    from_state: str
    to_state: str
    because: str
    rollout: str


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Health of the server: its database answers and its broker is connected."""

    healthy: bool


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Rejection of a request: an `EdgepackError` sent to the client."""

    problem: str
    found_in: str | None = None
    remedy: str | None = None
