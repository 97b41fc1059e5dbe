"""Operations on servers: accept them, take them from state to state, end them."""
