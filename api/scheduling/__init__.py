"""Our own extension of the Compute API: capacity, dry runs, holds, explanations, and which moves free the most."""
