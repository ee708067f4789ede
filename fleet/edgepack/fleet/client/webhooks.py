"""Methods of `FleetClient` for webhooks."""

from collections.abc import Sequence
from urllib.parse import quote

from edgepack.fleet.client.connection import Connection
from edgepack.fleet.documents.webhooks import (
    DEFAULT_TYPES,
    NewWebhook,
    WebhookRequest,
    WebhookTrial,
    WebhookView,
)


class WebhookMethods:
    """The methods of a `FleetClient` that are about webhooks."""

    _connection: Connection

    def webhooks(self) -> tuple[WebhookView, ...]:
        """Return the webhooks with the state of their deliveries.

        Returns:
            By name.

        Raises:
            FleetError: Nobody serves there, or this token is not an administrator's.

        Example:
            ```python
            print({hook.name: hook.because for hook in fleet.webhooks() if hook.failures})
            ```
        """
        return self._connection.get("/v1/webhooks", tuple[WebhookView, ...])

    def add_webhook(
        self, name: str, url: str, *, types: Sequence[str] = DEFAULT_TYPES, is_unsafe: bool = False
    ) -> NewWebhook:
        """Add a webhook: signed messages of future events, repeated until accepted.

        Args:
            name: Name in lists and in the audit log.
            url: Where to, by https.
            types: Events to report: actions of the audit log such as `rollout.breach`, a prefix
                such as `rollout`, and `device.failed`.
            is_unsafe: Lets the URL be without TLS, and lead into a private network.

        Returns:
            The webhook; the secret that its messages are signed with is returned only once.

        Raises:
            FleetError: The name is taken or invalid, the URL is not allowed, or this token is not
                an administrator's.

        Example:
            ```python
            # A receiver on this machine, without TLS: in earnest it is https://, and no is_unsafe.
            hook = fleet.add_webhook("chat", "http://127.0.0.1:9/edgepack", is_unsafe=True)
            print(hook.secret)
            ```
        """
        request = WebhookRequest(name=name, url=url, types=tuple(types), is_unsafe=is_unsafe)
        return self._connection.post("/v1/webhooks", NewWebhook, request)

    def remove_webhook(self, name: str) -> WebhookView:
        """Remove a webhook and discard its undelivered messages.

        Args:
            name: The webhook's name.

        Returns:
            The removed webhook.

        Raises:
            FleetError: There is none of that name, or this token is not an administrator's.

        Example:
            ```python
            fleet.add_webhook("pager", "http://127.0.0.1:9/pager", is_unsafe=True)
            fleet.remove_webhook("pager")
            ```
        """
        return self._connection.delete(f"/v1/webhooks/{quote(name, safe='')}", WebhookView)

    def try_webhook(self, name: str) -> WebhookTrial:
        """Post a message for a trial, once.

        Args:
            name: The webhook's name.

        Returns:
            Whether the receiver accepted the message, and the answer of a receiver that did not.

        Raises:
            FleetError: There is none of that name, or this token is not an administrator's.

        Example:
            ```python
            trial = fleet.try_webhook("chat")
            print(trial.delivered, trial.because)
            ```
        """
        return self._connection.post(f"/v1/webhooks/{quote(name, safe='')}/test", WebhookTrial)
