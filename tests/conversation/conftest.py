"""A tiny model behind the server, for what a client is told of a conversation."""

from tests.serving.conftest import client, folder, model, server

__all__ = ["client", "folder", "model", "server"]
