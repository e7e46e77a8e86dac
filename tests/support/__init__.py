"""What tests share: strategies that make inputs, and slow oracles that say what is right."""
