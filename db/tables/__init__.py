"""Table definitions. Migrations in ``db/migrations`` must agree with them; a test compares the two."""
