"""Remote consoles: how a client asks for one, and the proxy that connects it."""
