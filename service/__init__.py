"""What every process needs and no single service owns: configuration, logging, periodic threads, batching. No SQL, no bus."""
