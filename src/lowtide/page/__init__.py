"""One page and one look: every HTML that is written, and every chart that is drawn."""
