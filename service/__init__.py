"""What every process needs and no room owns: configuration, logging, periodic threads, coalescing. No SQL, no bus."""
