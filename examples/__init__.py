"""Small web apps that use the client. Each needs a running worker: `memory-tasks up`."""
