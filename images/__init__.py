"""Snapshots of servers and images that servers are built from. It knows no server, no cell and no database."""
