"""Bring the API database and the cells to agree: events of the feed, adoption, repairs, purges, removal of a cell."""
