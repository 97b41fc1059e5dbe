"""The scheduler: chooses hosts and claims them, with host table, filters, weighers, drivers and explanations. Launches nothing."""
