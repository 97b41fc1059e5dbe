"""Why a decision was what it was: its record, and what would have been enough for a refused request."""
