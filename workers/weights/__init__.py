"""How a weight version gets from the trainer to explorers: `manifest`, and one file for each channel."""
