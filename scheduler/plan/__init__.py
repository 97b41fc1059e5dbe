"""From a request to a claim: candidates, choice, alternates, explanation. Arithmetic on the host table, no input or output."""
