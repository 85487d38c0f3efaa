"""Messages, thoughts, tool calls and grammars, for the command and the server."""
