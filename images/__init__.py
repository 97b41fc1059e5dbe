"""The image store: snapshots of servers, which conductors and agents reach. It knows no server, no cell and no database."""
