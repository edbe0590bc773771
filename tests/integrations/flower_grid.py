"""In-process Flower grid: apps are called one after another, through Flower's own serialization."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.serde import context_from_proto, context_to_proto, message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

App = Callable[[Message, Context], Message]


class InProcessGrid(Grid):  # type: ignore[misc,unused-ignore]
    """Grid that calls the app of each node, which keeps its Context.

    Parameters
    ----------
    apps : mapping of int to callable
        A ClientApp, or another function from a message to a reply, by node id.

    Attributes
    ----------
    absent : set of int
        Nodes whose replies are lost.
    contexts : dict of int to Context
    sent, received : list of Message
        Messages as serialized, from the first on.
    """

    def __init__(self, apps: Mapping[int, App]) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
        self.apps = dict(apps)
        self.absent: set[int] = set()
        self.contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in apps}
        self.sent: list[Message] = []
        self.received: list[Message] = []

    def set_run(self, run: Any) -> None:
        """Do nothing: there is one run."""

    @property
    def run(self) -> Any:
        """Not implemented: there is no run information."""
        raise AssertionError("no strategy asks for this")

    def create_message(self, *arguments: Any, **options: Any) -> Message:
        """Not implemented: strategies create messages themselves."""
        raise AssertionError("no strategy asks for this")

    def get_node_ids(self) -> list[int]:
        """Return all nodes, in the order of the apps."""
        return [*self.apps]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Not implemented: strategies send and receive in one call."""
        raise AssertionError("no strategy asks for this")

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Not implemented: strategies send and receive in one call."""
        raise AssertionError("no strategy asks for this")

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Return the replies, in the order of the messages."""
        replies = []
        for message in messages:
            self.sent.append(copied(message))
            node = message.metadata.dst_node_id
            reply = self._called(node, copied(message))
            context = context_from_proto(context_to_proto(self.contexts[node]))
            self.contexts[node] = context
            if node not in self.absent:
                self.received.append(copied(reply))
                replies.append(copied(reply))
        return replies

    def _called(self, node: int, message: Message) -> Message:
        try:
            return self.apps[node](message, self.contexts[node])
        except Exception as error:  # Flower makes an error reply as well
            return Message(Error(code=2, reason=str(error)), reply_to=message)


def copied(message: Message) -> Message:
    """Return the message after serialization."""
    return message_from_proto(message_to_proto(message))
