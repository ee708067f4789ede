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
            name: What it is called, in lists and in the audit log.
            url: Where to, by https.
            types: What is reported: actions of the audit log such as `rollout.breach`, `rollout`
                for all of these that begin so, and `device.failed`.
            is_unsafe: Lets the URL be without TLS, and lead into a private network.

        Returns:
            The webhook; the secret that its messages are signed with is returned only once.

        Raises:
            FleetError: The name is taken or cannot be one, messages may not go there, or this token
                is not an administrator's.

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
        """End a webhook; what it had yet to tell is not reported.

        Args:
            name: What it is called.

        Returns:
            What was known of it.

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
            name: What it is called.

        Returns:
            Whether the receiver took it, and what it answered where it did not.

        Raises:
            FleetError: There is none of that name, or this token is not an administrator's.

        Example:
            ```python
            trial = fleet.try_webhook("chat")
            print(trial.delivered, trial.because)
            ```
        """
        return self._connection.post(f"/v1/webhooks/{quote(name, safe='')}/test", WebhookTrial)
