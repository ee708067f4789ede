"""Host side of a fleet: `FleetClient` calls a running fleet, `edgepack fleet serve` runs a fleet.

Programs may rely on the names in `__all__`. Each name is loaded at its first use, so that importing
this package costs nothing.
"""

from typing import TYPE_CHECKING

from edgepack.lazy_names import load_on_first_use

if TYPE_CHECKING:
    from edgepack.bundle.feedback import Evidence, Feedback
    from edgepack.errors import EdgepackError, FleetError
    from edgepack.fleet.client.fleet_client import FleetClient
    from edgepack.fleet.documents.access import LoginLink, NewToken, TokenView
    from edgepack.fleet.documents.audit import AuditEntry
    from edgepack.fleet.documents.devices import (
        DeviceDetails,
        DevicePart,
        DeviceView,
        EnrolledDevice,
        GroupView,
        ModelView,
        PackagedDevice,
        RemovedDevice,
        Revocations,
    )
    from edgepack.fleet.documents.fleet import EventView, FleetInfo
    from edgepack.fleet.documents.gates import Finding, GateView
    from edgepack.fleet.documents.latency import LatencyPart, LatencyReport, TextTimes
    from edgepack.fleet.documents.logs import LogView
    from edgepack.fleet.documents.previews import (
        PreviewPart,
        RollbackPart,
        RollbackPreview,
        RolloutPreview,
    )
    from edgepack.fleet.documents.releases import ReleaseView
    from edgepack.fleet.documents.rollouts import (
        AssignmentView,
        LatencyView,
        RolloutSettings,
        RolloutView,
        Selector,
    )
    from edgepack.fleet.documents.samples import CaptureDevice, CaptureView, PulledSamples
    from edgepack.fleet.documents.webhooks import NewWebhook, WebhookTrial, WebhookView
    from edgepack.wire.orders import BundleRef

_MODULES = {
    "AssignmentView": "edgepack.fleet.documents.rollouts",
    "AuditEntry": "edgepack.fleet.documents.audit",
    "BundleRef": "edgepack.wire.orders",
    "CaptureDevice": "edgepack.fleet.documents.samples",
    "CaptureView": "edgepack.fleet.documents.samples",
    "DeviceDetails": "edgepack.fleet.documents.devices",
    "DevicePart": "edgepack.fleet.documents.devices",
    "DeviceView": "edgepack.fleet.documents.devices",
    "EdgepackError": "edgepack.errors",
    "EnrolledDevice": "edgepack.fleet.documents.devices",
    "EventView": "edgepack.fleet.documents.fleet",
    "Evidence": "edgepack.bundle.feedback",
    "Feedback": "edgepack.bundle.feedback",
    "FleetClient": "edgepack.fleet.client.fleet_client",
    "FleetError": "edgepack.errors",
    "FleetInfo": "edgepack.fleet.documents.fleet",
    "Finding": "edgepack.fleet.documents.gates",
    "GateView": "edgepack.fleet.documents.gates",
    "GroupView": "edgepack.fleet.documents.devices",
    "LatencyPart": "edgepack.fleet.documents.latency",
    "LatencyReport": "edgepack.fleet.documents.latency",
    "LatencyView": "edgepack.fleet.documents.rollouts",
    "LogView": "edgepack.fleet.documents.logs",
    "LoginLink": "edgepack.fleet.documents.access",
    "ModelView": "edgepack.fleet.documents.devices",
    "NewToken": "edgepack.fleet.documents.access",
    "NewWebhook": "edgepack.fleet.documents.webhooks",
    "PackagedDevice": "edgepack.fleet.documents.devices",
    "PreviewPart": "edgepack.fleet.documents.previews",
    "PulledSamples": "edgepack.fleet.documents.samples",
    "ReleaseView": "edgepack.fleet.documents.releases",
    "RemovedDevice": "edgepack.fleet.documents.devices",
    "Revocations": "edgepack.fleet.documents.devices",
    "RollbackPart": "edgepack.fleet.documents.previews",
    "RollbackPreview": "edgepack.fleet.documents.previews",
    "RolloutPreview": "edgepack.fleet.documents.previews",
    "RolloutSettings": "edgepack.fleet.documents.rollouts",
    "RolloutView": "edgepack.fleet.documents.rollouts",
    "Selector": "edgepack.fleet.documents.rollouts",
    "TextTimes": "edgepack.fleet.documents.latency",
    "TokenView": "edgepack.fleet.documents.access",
    "WebhookTrial": "edgepack.fleet.documents.webhooks",
    "WebhookView": "edgepack.fleet.documents.webhooks",
}
__all__ = [
    "AssignmentView",
    "AuditEntry",
    "BundleRef",
    "CaptureDevice",
    "CaptureView",
    "DeviceDetails",
    "DevicePart",
    "DeviceView",
    "EdgepackError",
    "EnrolledDevice",
    "EventView",
    "Evidence",
    "Feedback",
    "Finding",
    "FleetClient",
    "FleetError",
    "FleetInfo",
    "GateView",
    "GroupView",
    "LatencyPart",
    "LatencyReport",
    "LatencyView",
    "LogView",
    "LoginLink",
    "ModelView",
    "NewToken",
    "NewWebhook",
    "PackagedDevice",
    "PreviewPart",
    "PulledSamples",
    "ReleaseView",
    "RemovedDevice",
    "Revocations",
    "RollbackPart",
    "RollbackPreview",
    "RolloutPreview",
    "RolloutSettings",
    "RolloutView",
    "Selector",
    "TextTimes",
    "TokenView",
    "WebhookTrial",
    "WebhookView",
]


if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(__name__, _MODULES)
