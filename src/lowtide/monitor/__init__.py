"""What runs on this node, and what it uses."""
