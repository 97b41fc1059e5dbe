"""Where a database and a bus meet: the registry of cells, fan-out, discovery, feed readers and the administration of cells."""
