"""A centre as those see it who ask it: who is logged in, and a store that is read over the wire."""
