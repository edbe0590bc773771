"""A Flower grid in this process: apps are called one after another, through Flower's own serialization."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.serde import context_from_proto, context_to_proto, message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

App = Callable[[Message, Context], Message]


class InProcessGrid(Grid):  # type: ignore[misc,unused-ignore]
    """Calls the app of each node, which keeps its Context.

    Parameters
    ----------
    apps : mapping of int to callable
        A ClientApp, or whatever makes a reply of a message, by node id.

    Attributes
    ----------
    absent : set of int
        Nodes whose replies are lost.
    contexts : dict of int to Context
    sent, received : list of Message
        As they were on the wire, from the first on.
    """

    def __init__(self, apps: Mapping[int, App]) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
        self.apps = dict(apps)
        self.absent: set[int] = set()
        self.contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in apps}
        self.sent: list[Message] = []
        self.received: list[Message] = []

    def set_run(self, run: Any) -> None:
        """There is one."""

    @property
    def run(self) -> Any:
        """There is none to tell of."""
        raise AssertionError("no strategy asks for this")

    def create_message(self, *arguments: Any, **options: Any) -> Message:
        """Strategies make messages themselves."""
        raise AssertionError("no strategy asks for this")

    def get_node_ids(self) -> list[int]:
        """All nodes, in the order of the apps."""
        return [*self.apps]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Strategies send and receive in one."""
        raise AssertionError("no strategy asks for this")

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Strategies send and receive in one."""
        raise AssertionError("no strategy asks for this")

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """The replies, in the order of the messages."""
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
        except Exception as error:  # Flower makes an error reply of it, too
            return Message(Error(code=2, reason=str(error)), reply_to=message)


def copied(message: Message) -> Message:
    """The message as it arrives."""
    return message_from_proto(message_to_proto(message))
