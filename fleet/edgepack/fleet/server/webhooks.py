"""Methods of a running fleet for webhooks."""

import secrets
import time

from edgepack.errors import FleetError
from edgepack.fleet.database import webhooks
from edgepack.fleet.database.schema import WebhookRow
from edgepack.fleet.database.views import view_of
from edgepack.fleet.database.webhooks import Message
from edgepack.fleet.documents.webhooks import (
    NewWebhook,
    WebhookRequest,
    WebhookTrial,
    WebhookView,
)
from edgepack.fleet.server.parts import Parts
from edgepack.fleet.webhooks import delivery, sending
from edgepack.wire import topics

TRIAL = "webhook.test"


class WebhookMethods(Parts, frozen=True, kw_only=True):
    """Methods for webhooks."""

    def webhooks(self) -> tuple[WebhookView, ...]:
        """Return all webhooks."""
        with self.store.reading() as session:
            return tuple(view_of(WebhookView, row) for row in webhooks.all_of(session))

    def add_webhook(self, request: WebhookRequest) -> NewWebhook:
        """Make a webhook; its secret is returned only once.

        Raises:
            FleetError: The name is invalid or taken, or the URL is not allowed.
        """
        try:
            topics.check_name(request.name, "webhook")
        except ValueError as error:
            raise FleetError(str(error), remedy="edgepack fleet webhooks add chat …") from error
        target = sending.read_target(request.url, is_unsafe=request.is_unsafe)
        sending.find_addresses(target, is_unsafe=request.is_unsafe)
        now, secret = self.store.now(), sending.make_secret()
        row = WebhookRow(
            name=request.name,
            key=f"msg_{secrets.token_hex(8)}",
            url=request.url,
            secret=secret,
            types=request.types,
            is_unsafe=request.is_unsafe,
            made_at=now,
            made_by=self.by,
        )
        with self.store.transaction(self.by) as session:
            webhooks.add(session, row, now)
            session.flush()
            return NewWebhook(secret=secret, view=view_of(WebhookView, row))

    def remove_webhook(self, name: str) -> WebhookView:
        """Remove a webhook and discard its undelivered messages.

        Raises:
            FleetError: There is none of that name.
        """
        with self.store.transaction(self.by) as session:
            return view_of(WebhookView, webhooks.remove(session, name, self.store.now()))

    def try_webhook(self, name: str) -> WebhookTrial:
        """Post a test message, once, ahead of waiting messages.

        Raises:
            FleetError: There is none of that name.
        """
        with self.store.reading() as session:
            hook = delivery.hook_of(webhooks.find(session, name))
        now = self.store.now()
        message = Message("t", time.time_ns(), TRIAL, now, {"because": f"asked for by {self.by}"})
        try:
            delivery.send(hook, self.tenant, message)
        except FleetError as error:
            return WebhookTrial(delivered=False, because=error.problem)
        return WebhookTrial(delivered=True, because="the receiver took it")
