"""Published evaluations, run again: each as published, and with its errors mended."""
